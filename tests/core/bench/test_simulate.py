"""Engines of named models on simulated chips."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isoinfer.backends.simulated import Simulated
from isoinfer.bench.measure import measure
from isoinfer.bench.mix import Range, RequestMix
from isoinfer.bench.simulate import BLOCK_SIZE, named_model, simulated_engine
from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.errors import UserError

MIX = RequestMix(num_prompts=12, input_len=Range(10, 90), output_len=Range(2, 20))


def make(name="llama-3.1-8b", backend="sim:h100", count=None, depth=2, **options):
    config = EngineConfig(
        model="",
        backend=backend,
        max_model_len=MIX.longest,
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=128, scheduling_depth=depth),
    )
    return simulated_engine(config, named_model(name), count=count, options=options)


def test_the_host_is_hidden_one_round_ahead_and_the_work_is_the_same():
    runs = []
    for depth in (1, 2):
        made = make(depth=depth, host_us="2000")
        run = measure(made.engine, MIX.requests(made.vocab_size), now=made.backend.now)
        runs.append((run, made.backend.times()))
    (one, slow), (two, fast) = runs
    assert one.num_output_tokens == two.num_output_tokens == sum(r.sampling.max_tokens for r in MIX.requests(9))
    assert slow.idle_fraction > 0.2
    assert fast.idle_fraction < 0.01
    assert two.seconds < 0.8 * one.seconds


def test_a_decode_step_of_one_request_is_the_weights_over_the_bandwidth():
    made = make(backend="sim:h100", host_us="0")
    run = measure(made.engine, replace(MIX, num_prompts=1, output_len=Range(40, 40)).requests(99), now=made.backend.now)
    tpot = run.figures()["tpot_ms"]["mean"]
    assert tpot == pytest.approx(1e3 * (2 * 7.505e9 / 3.35e12 + 50e-6), rel=0.01)  # 4.5 ms: bfloat16 weights


@pytest.mark.parametrize(
    ("name", "backend", "count"),
    [
        ("llama-3.1-8b", "sim:h100", 1),
        ("deepseek-v4.1-flash", "sim:b200", 4),
        ("deepseek-v3", "sim:h200", 8),
        ("smollm2-135m", "sim:cpu2", 1),
    ],
)
def test_as_few_chips_as_hold_the_weights(name, backend, count):
    made = make(name, backend)
    assert made.count == count
    assert made.backend.memory().total == count * make(name, backend, count=64).backend.memory().total / 64
    assert isinstance(made.backend, Simulated)
    assert made.description[0].startswith("sim: SIMULATED device")


@pytest.mark.parametrize("state_bytes", [0, 5 * 10**9])
def test_kv_has_what_weights_and_states_leave(state_bytes):
    model = replace(named_model("llama-3.1-8b"), state_bytes=state_bytes)
    config = EngineConfig(model="", backend="sim:h100", scheduler=SchedulerConfig(max_num_seqs=8))
    made = simulated_engine(config, model, count=1, options={})
    blocks = 0.9 * (80e9 - 2 * 7.5049e9 - 8 * state_bytes) / (131072 * BLOCK_SIZE)
    shown = int(made.description[-1].split(" blocks = ")[0].split()[-1])
    assert shown == pytest.approx(blocks, rel=1e-3)


def test_weights_that_do_not_fit_are_refused_with_the_numbers():
    with pytest.raises(UserError, match=r"1 x sim:b200 have 180 GB, but the weights are 298 GB; take more"):
        make("deepseek-v4.1-flash", "sim:b200", count=1)


def test_wrong_names_are_refused_in_words():
    with pytest.raises(UserError, match=r"no model 'gpt' to simulate; there are smollm2-135m, .*deepseek-v4.1-flash"):
        named_model("gpt")
    with pytest.raises(UserError, match="'cpu' is a real one"):
        make(backend="cpu")


def test_memory_may_be_given():
    config = EngineConfig(
        model="",
        backend="sim:h100",
        max_model_len=128,
        cache=CacheConfig(kv_memory=131072 * BLOCK_SIZE * 10),
        scheduler=SchedulerConfig(max_num_seqs=8),
    )
    made = simulated_engine(config, named_model("llama-3.1-8b"), count=None, options={})
    assert "10 blocks = 640 tokens" in made.description[-1]
