"""Judging drawn tokens by chi-square, and references that must not look at values on the host."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from isoinfer.backends.ops import OpSpec

CHI_SQUARE_Z = 5.0  # one-sided level 3e-7 a test


@pytest.fixture(scope="session")
def assert_distribution() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """assert_distribution(tokens, p): the counts of `tokens` fit the probabilities `p`, and none is impossible."""

    def check(tokens: torch.Tensor, p: torch.Tensor) -> None:
        counts = torch.bincount(tokens.long(), minlength=len(p)).double()
        assert not counts[p == 0].any()
        expected = (p * len(tokens))[p > 0]
        statistic = float(((counts[p > 0] - expected) ** 2 / expected).sum())
        freedom = len(expected) - 1
        # Wilson and Hilferty: the cube root of chi-square over its freedom is close to normal
        z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
        assert z < CHI_SQUARE_Z, (statistic, freedom)

    return check


@pytest.fixture(scope="session")
def assert_needs_no_values() -> Callable[[OpSpec], None]:
    """assert_needs_no_values(op): its reference runs on tensors without values, so it never waits for a device."""

    def check(op: OpSpec) -> None:
        for sample in op.samples(torch.float32, 0):
            mode = FakeTensorMode()
            args = [mode.from_tensor(arg) for arg in sample.args]
            with mode:
                op.reference(sample.static, *args)

    return check
