"""The header of a GGUF file: metadata and the table of tensors, read with `struct` from a memory map.

What it is not: a reader of tensor data, or a translator to Hugging Face's names. It exists beside the
gguf package's reader because that one takes seconds for a big vocabulary (an array object for every
string) and fails with an IndexError on a truncated file.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from isoinfer.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 8
_SCALAR_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFTensor:
    """A stored tensor: row-major `shape` (outer dimension first), byte `offset` in the file, byte length."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFHeader:
    """What the file says about itself. Strings are text, arrays are lists."""

    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read and check the header. CheckpointError if it is damaged, or the file is shorter than it says."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise CheckpointError(f"{path} is not a GGUF file: it does not start with 'GGUF'. Check the path.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(data)
            except (struct.error, ValueError, OverflowError) as error:
                raise CheckpointError(
                    f"{path} is a damaged or truncated GGUF file ({error}). Download it again."
                ) from error


class _Cursor:
    """A position in the header. Reading past the end raises ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = len(MAGIC)

    def take(self, form: str) -> tuple[Any, ...]:
        layout = struct.Struct("<" + form)
        self._need(layout.size)
        values = layout.unpack_from(self._data, self.position)
        self.position += layout.size
        return values

    def string(self) -> str:
        (length,) = self.take("Q")
        self._need(length)
        start = self.position
        self.position += length
        return self._data[start : start + length].decode("utf-8", errors="replace")

    def value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is GGUFValueType.ARRAY:
            return self._array()
        return self.take(_SCALAR_FORMATS[kind])[0]

    def _array(self) -> list[Any]:
        kind_id, count = self.take("IQ")
        kind = GGUFValueType(kind_id)
        self._need(count)  # at least a byte an element: refuses a damaged count before looping over it
        if kind in _SCALAR_FORMATS:
            return list(self.take(f"{count}{_SCALAR_FORMATS[kind]}"))
        return [self.value(kind) for _ in range(count)]

    def _need(self, size: int) -> None:
        if size > len(self._data) - self.position:
            raise ValueError(f"the header ends at byte {len(self._data)}, in the middle of an entry")


def _parse(data: mmap.mmap) -> GGUFHeader:
    cursor = _Cursor(data)
    (version,) = cursor.take("I")
    if version not in VERSIONS:
        raise ValueError(f"version {version}; known are {', '.join(map(str, VERSIONS))}, little-endian")
    num_tensors, num_keys = cursor.take("QQ")
    metadata = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(GGUFValueType(cursor.take("I")[0]))
    entries = [_tensor_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError(f"alignment {alignment}")
    start = -(-cursor.position // alignment) * alignment
    return GGUFHeader(metadata=metadata, tensors=dict(_place(entry, start, len(data)) for entry in entries))


_Entry = tuple[str, tuple[int, ...], int, int]


def _tensor_entry(cursor: _Cursor) -> _Entry:
    name = cursor.string()
    (num_dims,) = cursor.take("I")
    if num_dims > MAX_DIMS:
        raise ValueError(f"tensor {name} has {num_dims} dimensions")
    dims = cursor.take(f"{num_dims}Q")
    kind_id, offset = cursor.take("IQ")
    return name, tuple(reversed(dims)), kind_id, offset


def _place(entry: _Entry, start: int, file_size: int) -> tuple[str, GGUFTensor]:
    name, shape, kind_id, offset = entry
    try:
        kind = GGMLQuantizationType(kind_id)
    except ValueError:
        raise ValueError(f"tensor {name} has the unknown type {kind_id}") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape and shape[-1] % block:
        raise ValueError(f"tensor {name} has rows of {shape[-1]}, not a multiple of {kind.name}'s block of {block}")
    nbytes = math.prod(shape) // block * block_bytes
    if start + offset + nbytes > file_size:
        raise ValueError(f"tensor {name} ends at byte {start + offset + nbytes}, the file at {file_size}")
    return name, GGUFTensor(shape=shape, kind=kind, offset=start + offset, nbytes=nbytes)
