"""`explain`: all ops without a model, the model's own with one."""

from __future__ import annotations

import json

from isoinfer.cli.explain import summarize

KEYS = {"op", "count", "static", "provider", "status", "reason", "accumulate_dtype", "deterministic", "batch_invariant"}


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


def test_the_table_says_who_and_why(isoinfer):
    titles, *rows = isoinfer("explain", "--backend", "cpu").out.splitlines()
    assert titles.split()[0] == "op"
    assert any(row.startswith("paged_attention ") and "head_dim=" in row for row in rows)


def test_an_op_without_a_provider_is_code_1(isoinfer, monkeypatch):
    row = {"op": "x", "count": 1, "static": {}, "provider": "none", "status": "unsupported", "reason": "no kernel"}
    row |= {"accumulate_dtype": "float32", "deterministic": True, "batch_invariant": False, "others": []}
    monkeypatch.setattr("isoinfer.cli.explain._ops_of_backend", lambda options: [row])
    ran = isoinfer("explain")
    assert ran.code == 1
    assert "no kernel" in ran.out


def test_a_summary_leaves_out_what_is_off():
    static = {"a": 1, "b": None, "c": False, "d": True, "e": {"f": 2, "g": None}}
    assert summarize(static) == "a=1 d=True e=(f=2)"
