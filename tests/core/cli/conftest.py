"""A tiny random Llama in a folder, and a way to run a command line in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 32, 64, 4, 2, 2
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder. A context of 256 tokens, one token per byte."""
    folder = tmp_path_factory.mktemp("model")
    _write_tokenizer(folder)
    _write_weights(folder)
    return str(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write_weights(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 256,
        "vocab_size": 257,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 256,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"model.embed_tokens": (257, HIDDEN), "lm_head": (257, HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(LAYERS):
        for name, shape in {
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (kv, HIDDEN),
            "self_attn.v_proj": (kv, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
        }.items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    tensors = {f"{name}.weight": torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def isoinfer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run `isoinfer ARGS` here. `stdin`: text of a pipe, or None for a pipe with nothing in it."""
    from isoinfer.cli.app import run

    def go(*args: str, stdin: str = "") -> Ran:
        text = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
        monkeypatch.setattr("sys.stdin", text)
        capsys.readouterr()
        code = run(args)
        return Ran(code, *capsys.readouterr())

    return go


@pytest.fixture
def engine_args(model: str) -> tuple[str, ...]:
    """Options that open the tiny model quickly and in float32."""
    return ("-m", model, "--dtype", "float32", "--kv-memory", "4MiB", "--threads", "1")


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """Write objects as JSON lines."""

    def write(*lines: Any) -> Path:
        path = tmp_path / "in.jsonl"
        path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
        return path

    return write


@pytest.fixture
def typist(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make stdin a terminal where the given lines are typed; an exception in their place is raised."""

    def type_lines(*lines: str | BaseException) -> None:
        pending = list(lines)

        def read(prompt: str = "") -> str:
            if not pending:
                raise EOFError
            line = pending.pop(0)
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, closed=False))

    return type_lines
