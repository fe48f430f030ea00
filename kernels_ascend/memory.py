"""How large a tile may be: what fits the buffers of a vector core and of a cube core. Pure arithmetic."""

from __future__ import annotations

ALIGNMENT = 32
"""Bytes that the buffer's transfers come in: the last axis of a tile is a multiple of it."""
ACCUMULATOR_BYTES = 4


def tile_size(*, ub_bytes: int, double_buffer: bool, live_bytes: int, itemsize: int, limit: int) -> int:
    """Elements of a tile: the largest power of two up to `limit` of which all that lives at once fits.

    `live_bytes`: bytes for each element of a tile, summed over the tiles that live at the same time.
    `itemsize`: of the narrowest of them. Double buffering leaves half of the buffer.
    """
    room = ub_bytes // 2 if double_buffer else ub_bytes
    size = 1 << (min(room // live_bytes, limit).bit_length() - 1) if min(room // live_bytes, limit) else 0
    assert size * itemsize >= ALIGNMENT, f"{live_bytes} bytes an element do not fit {room} bytes"
    return size


def product_width(
    *,
    ub_bytes: int,
    l1_bytes: int,
    l0c_bytes: int,
    double_buffer: bool,
    rows: int,
    depth_bytes: int,
    out_itemsize: int,
    limit: int,
) -> int:
    """Columns of a product's tile of `rows` rows: the largest power of two up to `limit` that fits all buffers.

    The float32 sums fit the accumulator. Both operands, `depth_bytes` of each row and column, fit the cube core's
    buffer twice: one pair is loaded while the other is multiplied. Sums and results fit the vector core's buffer
    on their way out, of which double buffering leaves half.
    """
    out_bytes = ACCUMULATOR_BYTES + out_itemsize
    room = (
        l0c_bytes // (rows * ACCUMULATOR_BYTES),
        l1_bytes // (2 * depth_bytes) - rows,
        (ub_bytes // 2 if double_buffer else ub_bytes) // (rows * out_bytes),
        limit,
    )
    size = 1 << (min(room).bit_length() - 1) if min(room) > 0 else 0
    assert size * out_itemsize >= ALIGNMENT, f"tiles of {rows} rows do not fit"
    return size
