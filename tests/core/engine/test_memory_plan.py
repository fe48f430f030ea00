from __future__ import annotations

from typing import Any

import pytest

from isoinfer.backends.interface import KVLayout, MemoryInfo
from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.engine.memory_plan import MemoryPlan, plan_memory
from isoinfer.errors import UserError

LAYOUT = KVLayout(block_size=16, bytes_per_block=1000)


def plan(
    kv_memory: int | None = None, max_model_len: int | None = None, max_num_seqs: int = 4, **memory: int
) -> MemoryPlan:
    config: dict[str, Any] = {"model": "m", "max_model_len": max_model_len}
    config |= {"cache": CacheConfig(kv_memory=kv_memory), "scheduler": SchedulerConfig(max_num_seqs=max_num_seqs)}
    info = MemoryInfo(**{"total": 10**9, "free": 10**8, "kv_default": 50_000, **memory})
    return plan_memory(EngineConfig(**config), LAYOUT, info, max_position=320)


def test_the_backend_s_suggestion_is_taken_where_nothing_is_asked() -> None:
    made = plan()
    assert (made.num_blocks, made.max_model_len) == (51, 320)
    assert made.describe().endswith("50 blocks of 16 tokens = 800 tokens; context 320 tokens")


def test_no_more_blocks_than_all_slots_could_ever_use() -> None:
    assert plan(kv_memory=10**7, max_num_seqs=3).num_blocks == 3 * 20 + 1
    assert plan(kv_memory=10**7, max_num_seqs=3, max_model_len=17).num_blocks == 3 * 2 + 1


def test_little_memory_shortens_the_context_unless_one_was_asked_for() -> None:
    assert plan(kv_memory=5_999).max_model_len == 5 * 16
    assert plan(kv_memory=5_999, max_model_len=80).max_model_len == 80
    with pytest.raises(UserError, match="hold 80 tokens, but one request of 81 tokens needs"):
        plan(kv_memory=5_999, max_model_len=81)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 1}, "at least 2, got 1"),
        ({"max_model_len": 321}, "321 but the model handles at most 320"),
        ({"kv_memory": 10**8 + 1}, "are free; ask for less"),
        ({"kv_memory": 999}, "hold 0 tokens"),
    ],
)
def test_what_cannot_fit_is_refused_with_numbers(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(**settings)


def test_scratch_blocks_come_on_top_of_the_pool() -> None:
    layout = KVLayout(block_size=16, bytes_per_block=1000, num_scratch_blocks=2)
    info = MemoryInfo(total=10**9, free=10**8, kv_default=50_000)
    made = plan_memory(EngineConfig(model="m"), layout, info, max_position=320)
    assert (made.num_blocks, made.num_allocated) == (51, 53)
    assert (plan().num_blocks, plan().num_allocated) == (51, 51)
