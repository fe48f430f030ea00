"""`explain`: all ops without a model, the model's own with one."""

from __future__ import annotations

import json

import pytest

from isoinfer.cli.explain import summarize

KEYS = {"op", "count", "static", "provider", "status", "reason", "accumulate_dtype", "deterministic", "batch_invariant"}
KEYS |= {"evidence", "others"}


def test_without_a_model_all_ops_are_there(isoinfer):
    from isoinfer.backends.ops import ALL_OPS

    ran = isoinfer("explain", "--backend", "cpu", "--json")
    rows = json.loads(ran.out)
    assert ran.code == 0
    assert {row["op"] for row in rows} == set(ALL_OPS)
    assert all(set(row) >= KEYS and row["count"] > 0 for row in rows)


def test_with_a_model_its_own_specs_are_there(isoinfer, engine_args):
    rows = json.loads(isoinfer("explain", *engine_args, "--json").out)
    linear = [row for row in rows if row["op"] == "linear"]
    assert {row["static"]["in_features"] for row in linear} == {32, 64}
    assert "moe_experts" not in {row["op"] for row in rows}


def test_every_op_that_has_a_provider_here_says_how_that_is_known(isoinfer):
    rows = json.loads(isoinfer("explain", "--backend", "cpu", "--json").out)
    assert all(row["evidence"] == ["device"] for row in rows if row["provider"] != "composed")


def test_ops_over_paged_kv_are_asked_for_at_the_backend_s_block_size(isoinfer):
    rows = json.loads(isoinfer("explain", "--backend", "cpu", "--json").out)
    assert {row["static"]["block_size"] for row in rows if row["op"] == "paged_attention"} == {16}


def test_the_table_says_who_and_why(isoinfer):
    titles, *rows = isoinfer("explain", "--backend", "cpu").out.splitlines()
    assert titles.split()[0] == "op"
    assert any(row.startswith("paged_attention ") and "head_dim=" in row for row in rows)


def test_an_op_without_a_provider_is_code_1(isoinfer, monkeypatch):
    row = {"op": "x", "count": 1, "static": {}, "provider": "none", "status": "unsupported", "reason": "no kernel"}
    row |= {"accumulate_dtype": "float32", "deterministic": True, "batch_invariant": False, "others": []}
    row["evidence"] = []
    monkeypatch.setattr("isoinfer.cli.explain._ops_of_backend", lambda *args: [row])
    ran = isoinfer("explain")
    assert ran.code == 1
    assert "no kernel" in ran.out


def test_a_summary_leaves_out_what_is_off():
    static = {"a": 1, "b": None, "c": False, "d": True, "e": {"f": 2, "g": None}}
    assert summarize(static) == "a=1 d=True e=(f=2)"


class Assumed:
    """A backend that was told which chip to be, and answers with the CPU's providers."""

    name = "chip"

    def __init__(self, config):
        from isoinfer.backends.cpu import plugin
        from isoinfer.backends.descriptor import BackendConfig

        (device,) = plugin.isoinfer_backend_probe()
        self._inner = plugin.isoinfer_backend_create(device, BackendConfig(dtype=config.dtype, threads=1))
        self._chip = config.assume

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def describe(self):
        return [f"chip: {self._chip}, assumed"]

    def bind(self, op, static):
        raise AssertionError("nothing may be bound for a chip that is not there")


@pytest.fixture
def assumed(monkeypatch):
    monkeypatch.setattr("isoinfer.backends.registry.create_backend", lambda spec, config: Assumed(config))


def test_a_chip_that_is_not_here_is_explained(isoinfer, assumed):
    ran = isoinfer("explain", "--backend", "chip", "--assume", "c9", "--json")
    assert "chip: c9, assumed" in ran.err
    rows = json.loads(ran.out)
    assert len({row["op"] for row in rows}) > 15
    assert {tuple(row["evidence"]) for row in rows} == {()}, "the chip's package has no claims"


def test_a_model_is_explained_for_it_without_its_weights(isoinfer, assumed, engine_args, model):
    from pathlib import Path

    weights = Path(model) / "model.safetensors"
    args = ("explain", "--backend", "chip", "--assume", "c9", "-m", model, "--dtype", "float32", "--json")
    dry = json.loads(isoinfer(*args).out)
    assert weights.stat().st_size > 0
    real = json.loads(isoinfer("explain", *engine_args, "--json").out)
    strip = [{key: row[key] for key in ("op", "count", "static", "provider")} for row in real]
    assert [{key: row[key] for key in ("op", "count", "static", "provider")} for row in dry] == strip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--backend", "cpu", "--assume", "c9"), "drives the machine it is on and has no chip 'c9' to assume"),
        (("--assume", "c9"), "name one backend to assume a chip of, without a device, not 'auto'"),
        (("--backend", "cpu:0", "--assume", "c9"), "without a device, not 'cpu:0'"),
        (("--backend", "gpu", "--assume", "c9"), "there is no backend 'gpu'"),
        (("--backend", "cuda", "--assume", "sm_77"), "knows no chip 'sm_77' to assume; it knows sm_80, sm_86"),
    ],
)
def test_what_cannot_be_assumed_is_one_clear_line(isoinfer, args, message):
    ran = isoinfer("explain", *args)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_gpu_is_explained_where_there_is_none(isoinfer):
    rows = json.loads(isoinfer("explain", "--backend", "cuda", "--assume", "sm_100", "--json").out)
    served = {(row["op"], row["provider"]) for row in rows}
    assert {("rms_norm", "triton"), ("paged_attention", "triton"), ("linear", "torch")} <= served
    refused = [row for row in rows if row["op"] == "linear" and row["status"] == "unsupported"]
    assert {"torch: no int8 weights here yet; triton: no int8 weights here yet"} <= {row["reason"] for row in refused}


def test_a_gpu_that_is_to_be_deterministic_is_explained(isoinfer):
    args = ("--backend", "cuda", "--assume", "sm_100", "--deterministic", "--json")
    rows = [row for row in json.loads(isoinfer("explain", *args).out) if row["status"] == "supported"]
    assert {row["provider"] for row in rows if row["op"] in ("linear", "paged_attention")} == {"triton"}
    assert all(row["batch_invariant"] for row in rows)
