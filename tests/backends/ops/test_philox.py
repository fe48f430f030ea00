"""Philox4x32-10 against the known answers of Random123, and the noise made of it."""

from __future__ import annotations

import pytest
import torch

from isoinfer.backends.ops.philox import gumbel, philox4x32, uniform

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor(word) for word in counter)
    words = philox4x32((c0, c1, c2, c3), (torch.tensor(key[0]), torch.tensor(key[1])))
    assert tuple(int(word) for word in words) == expected


def test_uniform_is_inside_the_open_interval_for_all_words() -> None:
    u = uniform(torch.tensor([0, 511, 512, 0x80000000, ONES - 512, ONES]))
    assert u.tolist() == [2.0**-24, 2.0**-24, 3 * 2.0**-24, 0.5 + 2.0**-24, 1 - 3 * 2.0**-24, 1 - 2.0**-24]
    assert torch.isfinite(-torch.log(-torch.log(u))).all()


def test_gumbel_takes_lane_and_counter_of_each_token() -> None:
    seed, position, vocab = -(2**40) - 5, 77, 11
    noise = gumbel(torch.tensor([seed]), torch.tensor([position], dtype=torch.int32), 3, vocab)
    assert noise.shape == (1, vocab)
    for token in range(vocab):
        words = philox4x32(
            tuple(torch.tensor(c) for c in (token // 4, position, 3, 0)),  # type: ignore[arg-type]
            (torch.tensor(seed & ONES), torch.tensor((seed >> 32) & ONES)),
        )
        expected = -torch.log(-torch.log(uniform(words[token % 4])))
        assert noise[0, token] == expected


def test_noise_has_the_moments_of_gumbel() -> None:
    noise = gumbel(torch.arange(40), torch.zeros(40, dtype=torch.int32), 0, 1000).double()
    assert abs(float(noise.mean()) - 0.5772) < 0.03  # 40000 draws: standard error 0.0064
    assert abs(float(noise.var()) - 1.6449) < 0.08
