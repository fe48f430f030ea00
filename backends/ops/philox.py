"""Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011) in torch integers, and Gumbel noise.

No state: the same (seed, position, stream, token) gives the same number on every device.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words4 = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

SAMPLE_STREAM = 0
"""The stream of the token that is sampled at a position. Other uses of randomness take other numbers."""
RESIDUAL_STREAM = 1
"""The stream of the token that is sampled at a position in place of a draft that was rejected there."""
ACCEPT_STREAM = 2
"""The stream of the test whether the draft at a position is accepted."""


def philox4x32(counter: Words4, key: tuple[torch.Tensor, torch.Tensor]) -> Words4:
    """Four random 32-bit words for each counter and key, all int64 tensors of words in 0..2^32-1 that broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(word: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of the 64-bit product. It wraps to a negative int64, whose bits are still right."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK


def uniform(word: torch.Tensor) -> torch.Tensor:
    """Float32 in (0, 1) from the top 23 bits: (word >> 9 + 0.5) / 2^23.

    23 bits, not 24: the half must be exact in float32, or the largest words round to 1.0, whose Gumbel
    noise is infinite and would win any sampling (at 128k tokens once in 130 draws).
    """
    return ((word >> 9).to(torch.float32) + 0.5) * 2.0**-23


def gumbel(seed_R: torch.Tensor, position_R: torch.Tensor, stream: int, vocab_size: int) -> torch.Tensor:
    """Gumbel noise `[R, vocab_size]` float32: lane token % 4 of counter (token // 4, position, stream, 0)."""
    words = _words(seed_R, position_R, stream, groups=-(-vocab_size // 4))
    word_RV = torch.stack(words, dim=-1).flatten(1)[:, :vocab_size]
    return -torch.log(-torch.log(uniform(word_RV)))


def draw_uniform(seed_R: torch.Tensor, position_R: torch.Tensor, stream: int) -> torch.Tensor:
    """One float32 in (0, 1) a row, `[R]`: the first lane of counter (0, position, stream, 0)."""
    return uniform(_words(seed_R, position_R, stream, groups=1)[0][:, 0])


def _words(seed_R: torch.Tensor, position_R: torch.Tensor, stream: int, *, groups: int) -> Words4:
    """The words of counters (0..groups-1, position, stream, 0), each `[R, groups]`."""
    group_1G = torch.arange(groups, dtype=torch.int64, device=seed_R.device)[None, :]
    zero_11 = torch.zeros((1, 1), dtype=torch.int64, device=seed_R.device)
    counter = (group_1G, position_R.to(torch.int64)[:, None] & _MASK, zero_11 + stream, zero_11)
    seed_R1 = seed_R.to(torch.int64)[:, None]
    return philox4x32(counter, (seed_R1 & _MASK, (seed_R1 >> 32) & _MASK))
