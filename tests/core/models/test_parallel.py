"""The split plan covers each weight once and fits its shape."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from isoinfer.models.registry import resolve
from isoinfer.weights.open import open_checkpoint


def test_exactly_one_row_for_each_weight_and_sections_add_up(case: Any) -> None:
    model = resolve(open_checkpoint(str(case.path)).config)
    for rule in model.weight_rules():
        rows = [split for split in model.parallel_plan() if fnmatchcase(rule.name, split.weight)]
        assert len(rows) == 1, (rule.name, rows)
        (split,) = rows
        if split.sections:
            assert sum(split.sections) == rule.shape[0], rule.name
            assert all(section % split.unit == 0 for section in split.sections)
        if split.kind == "row":
            assert rule.shape[1] % split.unit == 0
