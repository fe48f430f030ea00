"""One record per architecture, and what becomes of GPUs that are not in the table."""

from __future__ import annotations

import pytest

from isoinfer.backends.cuda.capability import CAPABILITIES, assumed, capability_of, refusal
from isoinfer.errors import BackendError


def test_every_record_is_found_by_its_capability_and_by_its_name() -> None:
    for sm, record in CAPABILITIES.items():
        assert capability_of(sm // 10, sm % 10) is record
        assert assumed(f"sm_{sm}") is record


@pytest.mark.parametrize(
    ("asked", "found"), [((8, 7), 86), ((9, 1), 90), ((10, 7), 103), ((12, 1), 120), ((11, 0), 103)]
)
def test_a_newer_gpu_counts_as_the_nearest_older_one(asked: tuple[int, int], found: int) -> None:
    assert capability_of(*asked).sm == found


def test_what_is_too_old_is_refused_in_words() -> None:
    assert refusal(8, 0) is None
    assert refusal(7, 5) == "compute capability 7.5 is older than 8.0, the oldest that bfloat16 kernels run on"


def test_an_unknown_chip_lists_the_known_ones() -> None:
    with pytest.raises(BackendError, match=r"knows no chip 'sm_70' to assume; it knows sm_80, .*sm_120"):
        assumed("sm_70")
