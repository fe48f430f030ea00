"""Tiles fit the buffers, are as large as that allows, and are whole transfers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.kernels_ascend.memory import ALIGNMENT, product_width, tile_size


@pytest.mark.parametrize(
    ("ub_kilobytes", "double_buffer", "live_bytes", "expected"),
    [
        (192, True, 20, 4096),
        (192, True, 28, 2048),
        (248, False, 20, 8192),
        (248, False, 28, 8192),
        (192, False, 24, 8192),
    ],
)
def test_known_chips(ub_kilobytes: int, double_buffer: bool, live_bytes: int, expected: int) -> None:
    size = tile_size(
        ub_bytes=ub_kilobytes << 10, double_buffer=double_buffer, live_bytes=live_bytes, itemsize=2, limit=1 << 20
    )
    assert size == expected


@given(
    st.integers(1 << 16, 1 << 20),
    st.booleans(),
    st.integers(2, 64),
    st.sampled_from([1, 2, 4]),
    st.integers(32, 1 << 16),
)
def test_the_largest_power_of_two_that_fits(
    ub_bytes: int, double_buffer: bool, live_bytes: int, itemsize: int, limit: int
) -> None:
    size = tile_size(
        ub_bytes=ub_bytes, double_buffer=double_buffer, live_bytes=live_bytes, itemsize=itemsize, limit=limit
    )
    room = ub_bytes // (2 if double_buffer else 1)
    assert size & (size - 1) == 0
    assert size * live_bytes <= room
    assert size <= limit
    assert 2 * size * live_bytes > room or 2 * size > limit
    assert size * itemsize % ALIGNMENT == 0


def test_what_does_not_fit_is_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="do not fit"):
        tile_size(ub_bytes=1024, double_buffer=True, live_bytes=64, itemsize=2, limit=4096)


@given(
    ub_bytes=st.integers(1 << 16, 1 << 20),
    l1_bytes=st.integers(1 << 18, 1 << 21),
    l0c_bytes=st.integers(1 << 16, 1 << 19),
    double_buffer=st.booleans(),
    rows=st.sampled_from([16, 64, 128]),
    depth_bytes=st.sampled_from([128, 512]),
    out_itemsize=st.sampled_from([2, 4]),
    limit=st.sampled_from([64, 256, 1000]),
)
def test_the_widest_product_that_fits_every_buffer(
    ub_bytes: int,
    l1_bytes: int,
    l0c_bytes: int,
    double_buffer: bool,
    rows: int,
    depth_bytes: int,
    out_itemsize: int,
    limit: int,
) -> None:
    def fits(width: int) -> bool:
        sums, results, operands = rows * width * 4, rows * width * out_itemsize, (rows + width) * depth_bytes
        room = ub_bytes // (2 if double_buffer else 1)
        return sums <= l0c_bytes and sums + results <= room and 2 * operands <= l1_bytes and width <= limit

    def width() -> int:
        return product_width(
            ub_bytes=ub_bytes,
            l1_bytes=l1_bytes,
            l0c_bytes=l0c_bytes,
            double_buffer=double_buffer,
            rows=rows,
            depth_bytes=depth_bytes,
            out_itemsize=out_itemsize,
            limit=limit,
        )

    if not fits(ALIGNMENT // out_itemsize):
        with pytest.raises(AssertionError, match="do not fit"):
            width()
        return
    size = width()
    assert size & (size - 1) == 0
    assert fits(size)
    assert not fits(2 * size)
