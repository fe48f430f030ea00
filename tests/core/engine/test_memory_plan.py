from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.backends.interface import KVLayout, KVSpec, MemoryInfo
from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.engine.memory_plan import MemoryPlan, plan_memory
from isoinfer.errors import UserError
from isoinfer.kv.group_blocks import KVGroup
from isoinfer.kv.manager import KVManager


def spec(window: int | None = None, num_layers: int = 2, ring: int | None = None) -> KVSpec:
    name = "full" if window is None else f"window_{window}"
    layers = tuple(range(num_layers))
    return KVSpec(name=name, layers=layers, num_kv_heads=2, head_dim=8, dtype="float32", window=window, ring=ring)


def plan(
    kv_memory: int | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int = 4,
    *,
    max_num_batched_tokens: int = 32,
    prefix_caching: bool = False,
    windows: tuple[int | None, ...] = (None,),
    ring: int | None = None,
    bytes_per_block: tuple[int, ...] = (1000,),
    num_scratch_blocks: int = 0,
    depth: int = 1,
    **memory: int,
) -> MemoryPlan:
    config = EngineConfig(
        model="m",
        max_model_len=max_model_len,
        cache=CacheConfig(kv_memory=kv_memory, enable_prefix_caching=prefix_caching),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens),
    )
    layout = KVLayout(block_size=16, bytes_per_block=bytes_per_block, num_scratch_blocks=num_scratch_blocks)
    info = MemoryInfo(**{"total": 10**9, "free": 10**8, "kv_default": 50_000, **memory})
    specs = [spec(window, ring=ring if window else None) for window in windows]
    return plan_memory(config, layout, info, 320, specs, depth)


def test_the_backend_s_suggestion_is_taken_where_nothing_is_asked() -> None:
    made = plan()
    assert (made.num_blocks, made.max_model_len) == ((51,), 320)


def test_the_plan_reads_well() -> None:
    made = plan(windows=(None, 32), bytes_per_block=(500, 40 * 1024**2), kv_memory=5 * 1024**3, free=10**10)
    assert made.describe() == (
        "kv: 800.0 MiB in blocks of 16 tokens; context 320 tokens",
        "kv: full, 2 layers: 39.1 KiB, 80 blocks = 1280 tokens",
        "kv: window_32, 2 layers: 800.0 MiB, 20 blocks = 320 tokens",
    )


def test_no_more_blocks_than_all_slots_could_ever_use() -> None:
    assert plan(kv_memory=10**7, max_num_seqs=3).num_blocks == (3 * 20 + 1,)
    assert plan(kv_memory=10**7, max_num_seqs=3, max_model_len=17).num_blocks == (3 * 2 + 1,)


def test_as_much_again_may_be_cached() -> None:
    assert plan(kv_memory=10**7, max_num_seqs=3, prefix_caching=True).num_blocks == (2 * 3 * 20 + 1,)
    assert plan(kv_memory=10**4, max_num_seqs=3, prefix_caching=True).num_blocks == (10 + 1,)


def test_a_window_group_gets_what_running_requests_and_steps_in_flight_hold_and_the_rest_goes_to_the_others() -> None:
    sizes: dict[str, Any] = {"windows": (None, 20), "bytes_per_block": (1000, 3000), "max_num_seqs": 2}
    # for each of two requests 2 blocks of window and 2 at its ends, and 32 tokens of each of two steps
    most = 2 * (2 + 2) + 2 * 2
    assert plan(kv_memory=10**7, **sizes).num_blocks == (40 + 1, most + 1)
    assert plan(kv_memory=10**7, **sizes, depth=2).num_blocks == (40 + 1, most + 2 + 1)
    assert plan(kv_memory=10**7, **sizes, prefix_caching=True).num_blocks == (80 + 1, 2 * 8 + 4 + 1)
    assert plan(kv_memory=most * 3000 + 30_500, **sizes).num_blocks == (30 + 1, most + 1)
    assert plan(kv_memory=11 * 4000 + 999, **sizes).num_blocks == (11 + 1, 11 + 1)


def test_a_window_group_alone_is_no_limit_of_the_context() -> None:
    made = plan(kv_memory=10**5, windows=(20,), max_num_seqs=1)
    assert (made.num_blocks, made.max_model_len) == ((4 + 4 + 1,), 320)


def test_little_memory_shortens_the_context_unless_one_was_asked_for() -> None:
    assert plan(kv_memory=5_999).max_model_len == 5 * 16
    assert plan(kv_memory=5_999, max_model_len=80).max_model_len == 80
    with pytest.raises(UserError, match=r"hold 80 tokens, but one request of 81 tokens needs 5\.9 KiB"):
        plan(kv_memory=5_999, max_model_len=81)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 1}, "at least 2, got 1"),
        ({"max_model_len": 321}, "321 but the model handles at most 320"),
        ({"kv_memory": 10**8 + 10**6}, r"kv_memory is 96.3 MiB but only 95.4 MiB are free; ask for less"),
        ({"kv_memory": 999}, "hold 0 tokens"),
        ({"kv_memory": 1999, "windows": (None, 4), "bytes_per_block": (1000, 1000)}, "hold 0 tokens"),
    ],
)
def test_what_cannot_fit_is_refused_with_numbers(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(**settings)


def test_scratch_blocks_come_on_top_of_every_pool() -> None:
    made = plan(windows=(None, 64), bytes_per_block=(700, 300), num_scratch_blocks=2)
    assert made.num_blocks == (60, 29)
    assert made.num_allocated == (62, 31)
    assert plan().num_allocated == (51,)


@given(
    kv_memory=st.integers(2_000, 400_000),
    windows=st.lists(st.none() | st.integers(1, 400), min_size=1, max_size=3),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 100),
    depth=st.integers(1, 2),
    prefix_caching=st.booleans(),
)
def test_a_request_of_the_whole_context_can_run_alone_and_memory_is_kept(
    kv_memory: int, windows: list[int | None], max_num_seqs: int, max_num_batched_tokens: int, depth: int, **more: bool
) -> None:
    each = (1000, 300, 700)[: len(windows)]
    made = plan(
        kv_memory,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        windows=tuple(windows),
        bytes_per_block=each,
        depth=depth,
        **more,
    )
    assert sum(group.num_usable * size for group, size in zip(made.groups, each, strict=True)) <= kv_memory
    groups = [
        KVGroup(name=str(window), num_blocks=num_blocks, window=window)
        for window, num_blocks in zip(windows, made.num_blocks, strict=True)
    ]
    manager = KVManager(
        groups,
        block_size=made.block_size,
        num_slots=max_num_seqs,
        max_tokens=made.max_model_len,
        step_tokens=depth * max_num_batched_tokens,
    )
    assert manager.fits(made.max_model_len) == ""
    assert manager.capacity == made.max_model_len


def test_rings_are_one_for_each_slot_and_scratch_whatever_else_there_is() -> None:
    made = plan(windows=(None, 32), ring=34, bytes_per_block=(500, 300), num_scratch_blocks=2, kv_memory=11_200)
    assert (made.num_blocks, made.num_allocated, made.rings) == ((21,), (23, 5), (34,))
    assert made.describe()[-1] == "kv: window_32, 2 layers: 1.2 KiB, 4 rings of 34 tokens"
    assert plan(windows=(None, 32), ring=34, bytes_per_block=(500, 300), depth=2).num_allocated[1] == 6
    only = plan(windows=(32,), ring=34)
    assert (only.num_blocks, only.num_allocated, only.max_model_len) == ((), (5,), 320)


def test_rings_that_do_not_fit_are_told_by_the_requests_that_they_are_for() -> None:
    with pytest.raises(UserError, match=r"2.0 KiB for KV do not hold the rings of 4 requests, which need 3.9 KiB"):
        plan(windows=(None, 32), ring=34, bytes_per_block=(500, 1000), kv_memory=2048)
