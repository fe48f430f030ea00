"""How large a tile may be: what fits the unified buffer of a vector core. Pure arithmetic."""

from __future__ import annotations

ALIGNMENT = 32
"""Bytes that the buffer's transfers come in: the last axis of a tile is a multiple of it."""


def tile_size(*, ub_bytes: int, double_buffer: bool, live_bytes: int, itemsize: int, limit: int) -> int:
    """Elements of a tile: the largest power of two up to `limit` of which all that lives at once fits.

    `live_bytes`: bytes for each element of a tile, summed over the tiles that live at the same time.
    `itemsize`: of the narrowest of them. Double buffering leaves half of the buffer.
    """
    room = ub_bytes // 2 if double_buffer else ub_bytes
    size = 1 << (min(room // live_bytes, limit).bit_length() - 1) if min(room // live_bytes, limit) else 0
    assert size * itemsize >= ALIGNMENT, f"{live_bytes} bytes an element do not fit {room} bytes"
    return size
