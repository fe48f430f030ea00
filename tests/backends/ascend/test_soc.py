"""SoC numbers and their records."""

from __future__ import annotations

import pytest

from isoinfer.backends.ascend.soc import SOCS, assumed, refusal, soc_of
from isoinfer.errors import BackendError


@pytest.mark.parametrize(
    ("number", "name", "cores"),
    [
        (220, "910B", (24, 48)),
        (223, "910B", (20, 40)),
        (250, "910C", (24, 48)),
        (256, "910C", (20, 40)),
        (260, "950", (32, 64)),
    ],
)
def test_a_number_has_one_record(number: int, name: str, cores: tuple[int, int]) -> None:
    soc = soc_of(number)
    assert refusal(number, "chip") is None
    assert (soc.name, soc.cube_cores, soc.vector_cores) == (name, *cores)
    assert soc.ub_bytes == SOCS[name].ub_bytes


def test_a_device_that_reports_its_cores_is_believed() -> None:
    soc = soc_of(260, (36, 72))
    assert (soc.cube_cores, soc.vector_cores) == (36, 72)


def test_other_chips_are_refused_in_words() -> None:
    assert refusal(202, "Ascend310P3") == "Ascend310P3 is an Ascend 310P; this backend serves 910B, 910C, 950"
    assert refusal(999, "new") == "SoC number 999 (new) is not known; this backend serves 910B, 910C, 950"


def test_an_assumed_chip_is_one_that_is_known() -> None:
    assert assumed("950").double_buffer is False
    with pytest.raises(BackendError, match=r"no chip '960' to assume; it knows 910B, 910C, 950"):
        assumed("960")
