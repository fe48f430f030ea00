"""Hashes over arrays of 64-bit words, and the words that the simulated KV holds.

A word stands for the K and V of one token at one position: a hash of both, the token itself, and a mark that
it was written.

    bits 63..22 hash    bits 21..1 token    bit 0 written

Arithmetic is modulo 2^64. Suffixes: T tokens, P positions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

POISON = np.uint64(2)
"""A word that no token has, as 0, which was never written, is none: the lowest bit is not set."""
TOKEN_BITS = 21
_TOKEN_MASK = np.uint64((1 << TOKEN_BITS) - 1)
_HASH_MASK = np.uint64(0xFFFFFFFFFFFFFFFF << (TOKEN_BITS + 1) & 0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_BY_TOKEN, _BY_POSITION = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def mix(x: UInt64Array) -> UInt64Array:
    """A fresh array of well mixed words: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    x = x ^ (x >> _SHIFTS[0])
    x *= _FACTORS[0]
    x ^= x >> _SHIFTS[1]
    x *= _FACTORS[1]
    x ^= x >> _SHIFTS[2]
    return x


def mix_number(x: int) -> int:
    """The same for one Python number."""
    x &= 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return x ^ x >> 31


def multipliers(count: int) -> UInt64Array:
    """An odd number for each of `count` positions, by which a word read there counts in a sum."""
    return mix(np.arange(1, count + 1, dtype=np.uint64) * _BY_TOKEN) | _ONE


def words(token_T: UInt64Array, position_T: UInt64Array, context_T: UInt64Array | np.uint64) -> UInt64Array:
    """What to write for each token at its position; `context_T` is what else it depends on."""
    hashed_T = mix(token_T * _BY_TOKEN ^ position_T * _BY_POSITION ^ context_T)
    return hashed_T & _HASH_MASK | (token_T & _TOKEN_MASK) << _ONE | _ONE


def tokens(word_T: UInt64Array) -> UInt64Array:
    """The tokens of written words."""
    return word_T >> _ONE & _TOKEN_MASK
