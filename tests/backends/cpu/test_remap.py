"""Remap in numpy is bit for bit the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isoinfer.backends.cpu.remap import make_remap, make_remap_slots
from isoinfer.backends.ops import REMAP, REMAP_SLOTS, OpSpec
from isoinfer.conformance.arguments import copies, outcome, written_tensors

MAKERS: tuple[tuple[OpSpec, Callable[[Any], Callable[..., None]]], ...] = (
    (REMAP, make_remap),
    (REMAP_SLOTS, make_remap_slots),
)


def test_every_sample_comes_out_as_the_reference_says() -> None:
    for op, make in MAKERS:
        for seed in range(5):
            for sample in op.samples(torch.float32, seed):
                args = copies(sample.args)
                make(sample.static)(*args)
                expected = outcome(op, sample.static, copies(sample.args))
                written = written_tensors(op, args)
                assert all(torch.equal(written[name], expected[name]) for name in expected), (op.name, sample.label)


def test_the_cpu_serves_them_so(open_backend: Any) -> None:
    for op, _ in MAKERS:
        sample = next(iter(op.samples(torch.float32, 0)))
        assert open_backend().support(op, sample.static).provider == "numpy"
