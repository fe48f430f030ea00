"""`replay-error`: what a bounded replay changes, beside an exact one, which changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

WINDOW = 6
TEXT = "A long enough line, of which the beginning is cached and the end is compared: " * 2


@pytest.fixture(scope="module")
def window_model(model, tmp_path_factory):
    """The tiny model as a Qwen2 with a third layer, a copy of the second, of which the first two have a window."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("window-model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((Path(model) / name).read_text())
    config = json.loads((Path(model) / "config.json").read_text())
    config |= {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": WINDOW}
    config |= {"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(Path(model) / "model.safetensors")
    tensors |= {name.replace("layers.1", "layers.2"): x.clone() for name, x in tensors.items() if "layers.1" in name}
    projections = [name for name in tensors if any(part in name for part in ("q_proj", "k_proj", "v_proj"))]
    tensors |= {name.replace("weight", "bias"): torch.zeros(tensors[name].shape[0]) for name in projections}
    save_file({name: 3 * tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    return str(folder)


@pytest.fixture
def args(window_model):
    return ("replay-error", "-m", window_model, "--dtype", "float32", "--threads", "1", "--places", "12")


def test_bounded_differs_and_exact_does_not(isoinfer, args, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{TEXT}\n\ntoo short\n")
    ran = isoinfer(*args, "--prompts", str(prompts), "--json")
    assert ran.code == 0, ran.err
    bounded = json.loads(ran.out)
    long, short = bounded["each"]
    assert (bounded["swa_replay"], bounded["prompts"], short) == ("bounded", str(prompts), None)
    assert (long["num_tokens"], long["num_cached"], long["num_places"]) == (128 + 13, 128 - WINDOW, 12)
    assert bounded["mean"] == {name: long[name] for name in ("kl", "kl_max", "agreement")}
    assert long["kl_max"] > long["kl"] > 1e-6
    assert 0 <= long["agreement"] <= 1
    options = ("--swa-replay", "exact", "--deterministic", "--prompts", str(prompts), "--json")
    exact = json.loads(isoinfer(*args, *options).out)
    assert exact["each"][0]["num_cached"] == 128 - 2 * (WINDOW - 1)
    assert exact["mean"] == {"kl": 0.0, "kl_max": 0.0, "agreement": 1.0}


def test_without_prompts_tokens_are_random_and_that_is_said(isoinfer, args):
    ran = isoinfer(*args)
    assert ran.code == 0, ran.err
    titles, *rows = ran.out.splitlines()
    assert titles.split()[0] == "prompt"
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3", "mean"]
    assert "random tokens, which no text looks like" in ran.err


def test_what_is_too_short_is_an_error_if_nothing_else_is_there(isoinfer, args, model, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("short\n")
    ran = isoinfer(*args, "--prompts", str(prompts))
    assert ran.code == 2
    assert "No prompt is long enough" in ran.err
    assert "blocks of 16" in ran.err
    ran = isoinfer("replay-error", "-m", model)
    assert "no layer has a window" in ran.err


def test_explain_shows_the_ops_over_rings(isoinfer, window_model):
    options = ("explain", "-m", window_model, "--backend", "cpu", "--window-kv", "ring", "--json")
    ops = {row["op"] for row in json.loads(isoinfer(*options).out)}
    assert {"window_attention", "ring_write", "paged_attention"} <= ops
