"""`bench`: figures of a model here, and of a simulated device, which are called so wherever they are printed."""

from __future__ import annotations

import json

import pytest

SMALL = ("--num-prompts", "6", "--input-len", "5-20", "--output-len", "3-6", "--max-num-seqs", "4")
PLAN = ("bench", "--backend", "sim:b200", "--sim-model", "deepseek-v4.1-flash", *SMALL)
COMMON = {
    "simulated",
    "model",
    "device",
    "requests",
    "prompt_tokens",
    "output_tokens",
    "seconds",
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "ttft_ms",
    "tpot_ms",
    "e2el_ms",
    "rounds",
    "preemptions",
    "wasted_rows",
    "draft_tokens",
    "accepted_tokens",
    "kv_usage_mean",
    "kv_usage_max",
}
SIMULATED = {"device_idle_fraction", "exposed_host_us", "host_us_per_row"}


def test_a_plan_is_marked_as_simulated_in_text_and_in_json(isoinfer):
    ran = isoinfer(*PLAN)
    assert ran.code == 0, ran.err
    first, titles, *rows = ran.out.splitlines()
    assert first.startswith("SIMULATED")
    assert titles.split() == ["figure", "value"]
    assert {row.split()[0] for row in rows} == (COMMON | SIMULATED) - {"simulated"}
    assert "SIMULATED device" in ran.err
    figures = json.loads(isoinfer(*PLAN, "--json").out)
    assert set(figures) == COMMON | SIMULATED
    assert (figures["simulated"], figures["device"], figures["requests"]) == (True, "4 x sim:b200", 6)


def test_the_plan_repeats_where_the_host_has_a_price(isoinfer):
    runs = [isoinfer(*PLAN, "--backend-option", "host_us=300", "--json").out for _ in range(2)]
    assert runs[0] == runs[1]
    depth_1 = json.loads(isoinfer(*PLAN, "--backend-option", "host_us=300", "--scheduling-depth", "1", "--json").out)
    assert depth_1["device_idle_fraction"] > json.loads(runs[0])["device_idle_fraction"]


def test_more_chips_are_faster(isoinfer):
    few, many = (
        json.loads(isoinfer(*PLAN, "--sim-devices", count, "--backend-option", "host_us=0", "--json").out)
        for count in ("4", "8")
    )
    assert many["device"] == "8 x sim:b200"
    assert many["seconds"] < 0.7 * few["seconds"]


def test_a_real_model_has_the_same_words(isoinfer, engine_args):
    ran = isoinfer("bench", *engine_args, "--backend", "cpu", *SMALL, "--json")
    assert ran.code == 0, ran.err
    figures = json.loads(ran.out)
    assert set(figures) == COMMON
    assert (figures["simulated"], figures["device"], figures["requests"]) == (False, "cpu:0", 6)
    assert 18 <= figures["output_tokens"] <= 36
    assert figures["kv_usage_max"] > 0


def test_a_real_model_on_a_simulated_device_is_simulated(isoinfer, model):
    ran = isoinfer("bench", "-m", model, "--backend", "sim", "--backend-option", "step_ms=5", *SMALL, "--json")
    assert ran.code == 0, ran.err
    figures = json.loads(ran.out)
    assert set(figures) == COMMON | SIMULATED
    assert figures["simulated"] is True
    assert figures["tpot_ms"]["p50"] >= 5


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "Say what to run"),
        (("-m", "x", "--sim-model", "y"), "Say what to run"),
        (("--sim-model", "llama-3.1-8b", "--backend", "cpu"), "is a real one"),
        (("--sim-model", "nothing", "--backend", "sim:b200"), "there is no model 'nothing'"),
        (("--sim-model", "llama-3.1-8b", "--backend", "sim:b300"), "has no device 'b300'"),
        (("--sim-model", "llama-3.1-8b", "--backend", "sim:b200", "--input-len", "9-3"), "--input-len '9-3'"),
        (("--sim-model", "llama-3.1-8b", "--backend", "sim:b200", "--backend-option", "x"), "is not NAME=VALUE"),
        (("--sim-model", "llama-3.1-8b", "--backend", "sim:b200", "--backend-option", "x=1"), "no option 'x'"),
        (("--sim-model", "deepseek-v3", "--backend", "sim:h100", "--sim-devices", "2"), "take more with --sim-devices"),
    ],
)
def test_mistakes_are_one_line(isoinfer, args, message):
    ran = isoinfer("bench", *args)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert len(ran.err.strip().splitlines()) == 1
