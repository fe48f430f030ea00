"""What the closing line says of an engine: only what happened, with its numbers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from isoinfer.stats import EngineStats


def stats(**given: int) -> EngineStats:
    return EngineStats(**{field.name: given.get(field.name, 0) for field in fields(EngineStats)})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, ""),
        ({"num_steps": 9, "prefix_cache_queries": 40}, ""),
        ({"prefix_cache_queries": 40, "prefix_cache_hits": 16}, "prefix cache: 16 of 40 tokens"),
        ({"num_draft_tokens": 8, "num_accepted_tokens": 2}, "drafts: 2 of 8 accepted (25%)"),
        ({"num_draft_tokens": 8}, "drafts: 0 of 8 accepted (0%)"),
        ({"num_preemptions": 1, "num_failed_steps": 2}, "1 preemption; 2 failed steps"),
    ],
)
def test_it_says_what_happened_and_nothing_else(given: dict[str, int], sentence: str) -> None:
    assert stats(**given).sentence() == sentence


def test_an_engine_counts_its_own(open_llm: Any) -> None:
    llm = open_llm(max_model_len=64)
    before = llm.stats()
    llm.generate([list(range(2, 40))] * 2)
    after = llm.stats()
    assert after.num_steps > before.num_steps
    assert after.prefix_cache_queries - before.prefix_cache_queries == 2 * 38
