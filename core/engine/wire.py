"""Messages as bytes: frozen dataclasses of ints, floats, strings, tuples and numpy arrays, without pickle.

    bytes = magic (4) | crc32 of the rest (4) | header length (4) | JSON header | array bytes, one after another

In the header a tuple is a list, and what JSON cannot say is an object with one key: {"f": hex} a float
(so that inf, nan and -0.0 survive), {"a": [dtype, shape]} the next array, {"m": [class, [values]]} a
dataclass. Decoding makes only classes of the registry it is given.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

MAGIC = b"iso1"
PREFIX = struct.Struct("<4sII")
ARRAY_KINDS = "biuf"

Registry = Mapping[str, type]


def registry(*types: type) -> Registry:
    """The dataclasses that may occur in a message (nested ones too), by class name."""
    assert all(is_dataclass(cls) for cls in types), types
    named = {cls.__name__: cls for cls in types}
    assert len(named) == len(types), "two classes have the same name"
    return MappingProxyType(named)


def encode(message: object) -> bytes:
    """The bytes of a dataclass. TypeError if it holds anything but what the module docstring lists."""
    arrays: list[bytes] = []
    header = json.dumps(_pack(message, arrays), separators=(",", ":")).encode()
    rest = b"".join([struct.pack("<I", len(header)), header, *arrays])
    return MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def decode(data: bytes, types: Registry) -> Any:
    """The message; arrays are fresh and writable. ValueError for bytes that `encode` did not make of `types`."""
    if len(data) < PREFIX.size:
        _malformed("it is too short")
    magic, checksum, header_len = PREFIX.unpack_from(data)
    if magic != MAGIC:
        _malformed("it does not begin as a message")
    if zlib.crc32(memoryview(data)[8:]) != checksum:
        _malformed("its checksum is wrong")
    reader = _Reader(data, PREFIX.size + header_len, types)
    try:
        message = reader.unpack(json.loads(data[PREFIX.size : PREFIX.size + header_len]))
    except (TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"Malformed message: {error!r}.") from error
    if reader.offset != len(data):
        _malformed("bytes are left over")
    return message


def _malformed(why: str) -> NoReturn:
    raise ValueError(f"Malformed message: {why}.")


def _pack(value: object, arrays: list[bytes]) -> object:
    # Exact types: a bool is no int here, and a numpy scalar must not pass for a number.
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"f": value.hex()}
    if type(value) is tuple:
        return [_pack(item, arrays) for item in value]
    if isinstance(value, np.ndarray):
        return {"a": _pack_array(value, arrays)}
    if is_dataclass(value) and not isinstance(value, type):
        values = [_pack(getattr(value, field.name), arrays) for field in fields(value)]
        return {"m": [type(value).__name__, values]}
    raise TypeError(f"A message cannot hold {type(value).__name__}: {value!r}")


def _pack_array(array: np.ndarray[Any, Any], arrays: list[bytes]) -> list[object]:
    if array.dtype.kind not in ARRAY_KINDS:
        raise TypeError(f"A message cannot hold an array of {array.dtype}")
    arrays.append(array.tobytes())
    return [array.dtype.str, list(array.shape)]


class _Reader:
    """Unpacks one header, taking arrays from `offset` on in the order they were written."""

    def __init__(self, data: bytes, offset: int, types: Registry) -> None:
        self.offset = offset
        self._data = data
        self._types = types

    def unpack(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is list:
            return tuple(self.unpack(item) for item in value)
        ((tag, content),) = value.items()
        if tag == "f":
            return float.fromhex(content)
        if tag == "a":
            return self._array(*content)
        if tag == "m":
            return self._message(*content)
        return _malformed(f"unknown tag {tag!r}")

    def _message(self, name: str, values: list[Any]) -> Any:
        if name not in self._types:
            _malformed(f"unknown class {name!r}")
        names = [field.name for field in fields(self._types[name])]
        if len(names) != len(values):
            _malformed(f"{name} has {len(names)} fields here, {len(values)} there")
        return self._types[name](**{n: self.unpack(v) for n, v in zip(names, values, strict=True)})

    def _array(self, dtype_name: str, shape: list[int]) -> np.ndarray[Any, Any]:
        dtype = np.dtype(dtype_name)
        if dtype.kind not in ARRAY_KINDS or any(type(size) is not int or size < 0 for size in shape):
            _malformed(f"bad array {dtype_name!r} {shape!r}")
        count = int(np.prod(shape, dtype=object))
        # frombuffer refuses an array that ends behind the data.
        array = np.frombuffer(self._data, dtype, count, self.offset).reshape(shape).copy()
        self.offset += count * dtype.itemsize
        return array
