"""Names for blocks of tokens: sha256, chained, so that a name stands for a block and everything before it.

    root    = sha256(domain, version, block size, key)        every field with its length before it
    name[i] = sha256(name[i - 1], tokens of block i as little-endian uint32)

Two requests share names exactly as far as they share tokens, block size and key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import sha256

import numpy as np

from isoinfer.backends.interface import Int32Array

DOMAIN, VERSION = b"isoinfer.kv.prefix", 1
TOKEN_BYTES = 4


def extra_key(cache_salt: str | None, adapter: str | None) -> bytes:
    """What, besides tokens, must be equal for KV to be shared; b"" where a request has neither."""
    fields = ((b"salt", cache_salt), (b"adapter", adapter))
    return b"".join(_framed(name, text.encode("utf-8", "surrogatepass")) for name, text in fields if text is not None)


class HashChain:
    """The names of one request's blocks, computed as far as they were asked for.

    `names`: those that are known from an earlier chain of the same request.
    """

    def __init__(self, *, block_size: int, key: bytes, names: Sequence[bytes] = ()) -> None:
        self.block_size = block_size
        self.names = list(names)
        self._root = sha256(_framed(DOMAIN, struct.pack("<II", VERSION, block_size), key)).digest()

    def walk(self, tokens_L: Int32Array, num_blocks: int) -> Iterator[bytes]:
        """The names of the first `num_blocks` blocks of `tokens_L`, each computed when it is reached."""
        yield from self.names[:num_blocks]
        yield from self._compute(tokens_L, num_blocks)

    def extend(self, tokens_L: Int32Array, num_blocks: int) -> None:
        """Know at least the first `num_blocks` names."""
        for _ in self._compute(tokens_L, num_blocks):
            pass

    def _compute(self, tokens_L: Int32Array, num_blocks: int) -> Iterator[bytes]:
        start, size = len(self.names), self.block_size * TOKEN_BYTES
        last = self.names[-1] if self.names else self._root
        packed = packed_tokens(tokens_L[start * self.block_size : num_blocks * self.block_size])
        for place in range(0, (num_blocks - start) * size, size):
            last = sha256(last + packed[place : place + size]).digest()
            self.names.append(last)
            yield last


def packed_tokens(tokens_L: Int32Array) -> bytes:
    """Token ids as bytes: little-endian uint32 on every machine."""
    return np.ascontiguousarray(tokens_L, dtype="<i4").tobytes()


def _framed(*fields: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(field)) + field for field in fields)
