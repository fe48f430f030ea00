"""The filters' constants and cases; what they keep is tested with sampling."""

from __future__ import annotations

import struct

from isoinfer.kernels_ascend import token_filter
from isoinfer.kernels_ascend.token_filter import LOWEST


def test_the_image_of_the_lowest_finite_number() -> None:
    (bits,) = struct.unpack("i", struct.pack("f", float("-inf")))
    assert LOWEST.value == (bits ^ 0x7FFFFFFF) + 1


def test_one_case_serves_every_vocabulary() -> None:
    (case,) = [token_filter.case(desc) for desc in token_filter.descriptions()]
    assert list(case.constants) == ["BLOCK_V"]
