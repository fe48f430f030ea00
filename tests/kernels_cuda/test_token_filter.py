"""The filters' constants and cases; what they keep is tested with sampling."""

from __future__ import annotations

import struct

from isoinfer.kernels_cuda import token_filter
from isoinfer.kernels_cuda.token_filter import NEG_INF, FilterDesc


def test_the_image_of_minus_infinity() -> None:
    (bits,) = struct.unpack("i", struct.pack("f", float("-inf")))
    assert NEG_INF.value == bits ^ 0x7FFFFFFF


def test_both_alignments_are_listed_and_differ() -> None:
    keys = [token_filter.case(desc).key for desc in token_filter.descriptions()]
    assert keys == [token_filter.case(FilterDesc(aligned=aligned)).key for aligned in (True, False)]
    assert len(set(keys)) == 2
