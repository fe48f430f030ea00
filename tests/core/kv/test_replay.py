"""How much is computed again after a hit, and that the manager counts such a hit right."""

from __future__ import annotations

from typing import Any

import pytest

from isoinfer.backends.interface import KVSpec
from isoinfer.kv.replay import replay_length

NOW = -1


def spec(layers: int, window: int | None = None, ring: int | None = None) -> KVSpec:
    return KVSpec(
        name="x", layers=tuple(range(layers)), num_kv_heads=1, head_dim=8, dtype="float32", window=window, ring=ring
    )


@pytest.mark.parametrize(
    ("specs", "exact", "bounded"),
    [
        ([spec(4)], 0, 0),
        ([spec(4), spec(4, 8)], 0, 0),  # blocks of a window are cached
        ([spec(4), spec(3, 8, 10)], 3 * 7, 8),
        ([spec(4), spec(3, 8, 10), spec(2, 128, 134)], 3 * 7 + 2 * 127, 128),
        ([spec(40, 128, 134)], 40 * 127, 128),
    ],
)
def test_each_ring_layer_adds_a_window_but_one_to_the_exact_replay(
    specs: list[KVSpec], exact: int, bounded: int
) -> None:
    assert replay_length(specs, "exact") == exact
    assert replay_length(specs, "bounded") == bounded


def test_a_hit_no_longer_than_its_replay_is_none(make_kv: Any) -> None:
    kv = make_kv(replay=8)
    kv.cache(16)
    assert [kv.found(length) for length in (5, 9, 12, 13, 16, 17, 20)] == [0, 0, 0, 12, 12, 16, 16]
    assert kv.start(0, 20) == 16
    assert kv.stats.hits == 16 - 8
    kv.check()


def test_what_is_computed_again_is_not_published_again(make_kv: Any) -> None:
    """A slot whose replay has not reached the end of its hit has confirmed less than is published."""
    kv = make_kv(replay=8)
    kv.cache(16)
    kv.start(0, 20)
    shared = kv.table(0)
    for confirmed in (8, 11, 15, 16, 20):
        kv.confirm(0, confirmed)
        kv.check()
    assert kv.table(0)[:4] == shared[:4]
    kv.release(0, NOW)
    assert kv.found(21) == 20
    kv.check()


def test_a_slot_s_rings_are_discarded_when_the_last_step_that_may_touch_them_has_settled(make_kv: Any) -> None:
    said: list[tuple[int, list[int]]] = []
    kv = make_kv(num_rings=2, on_discard=lambda group, ids: said.append((group, list(ids))))
    kv.settled(4)
    kv.start(2, 5)
    kv.release(2, 6)
    kv.settled(5)
    assert said == []
    kv.settled(6)
    assert sorted(said)[1:] == [(1, [2]), (2, [2])], "group 0 has blocks"


def test_a_model_with_nothing_but_rings_needs_no_block(make_kv: Any) -> None:
    kv = make_kv.without_blocks(num_rings=1, prefix_caching=False)
    assert kv.fits(64) == ""
    assert kv.start(0, 20) == 0
    kv.confirm(0, 20)
    assert (kv.usage, kv.capacity, kv.num_groups, kv.has_rings) == (0.0, 64, 0, True)
    kv.release(0, NOW)
    kv.check()


def test_windows_in_blocks_cannot_be_replayed_over(make_kv: Any) -> None:
    with pytest.raises(AssertionError, match="left the window"):
        make_kv(window=6, replay=8)
