"""Ids are found again, in little memory."""

from __future__ import annotations

from isoinfer.batch.seen_ids import SeenIds


def test_the_second_sight_names_the_first_line():
    seen = SeenIds()
    assert [seen.add("a", 1), seen.add("b", 2), seen.add("a", 3), seen.add("a", 4)] == [None, None, 1, 1]
    seen.close()


def test_odd_ids_are_distinct():
    seen = SeenIds()
    odd = ["", " ", "é", "e\u0301", "\ud800", "a" * 100_000]
    assert [seen.add(custom_id, 1) for custom_id in odd] == [None] * len(odd)
    seen.close()
