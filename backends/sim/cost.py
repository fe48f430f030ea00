"""What a step costs on the simulated device: a fixed time, or the roofline of a chip under a model's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from isoinfer.backends.interface import ModelSpec
from isoinfer.backends.sim.chips import Chip
from isoinfer.backends.sim.kv import bytes_per_token
from isoinfer.backends.sim.reading import Reading


class Cost(Protocol):
    """A model of time."""

    def seconds(self, spec: ModelSpec, readings: Sequence[Reading]) -> float:
        """Of one forward, with what its rows compute and read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCost:
    """Every step takes as long as any other."""

    step_s: float

    def seconds(self, spec: ModelSpec, readings: Sequence[Reading]) -> float:
        """`step_s`."""
        return self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCost:
    """The larger of work over peak and bytes over bandwidth, and the launch on top: a bound that no kernel beats.

    `count` chips share work and bytes evenly; what they tell each other costs nothing. Scores of attention
    are not in the work, nor are activations in the bytes.
    """

    chip: Chip
    bits: int
    count: int = 1

    def seconds(self, spec: ModelSpec, readings: Sequence[Reading]) -> float:
        """Of the step's true lengths."""
        num_tokens = readings[0].rows.row_T.size
        work = spec.flops_per_token * num_tokens / (self.count * self.chip.peak(self.bits))
        moved = weights_read(spec, num_tokens) + kv_moved(spec, readings)
        return max(work, moved / (self.count * self.chip.bandwidth)) + self.chip.launch_s


def weights_read(spec: ModelSpec, num_tokens: int) -> float:
    """Bytes of weights. Of experts, those that at least one token is expected to choose, if all are as likely."""
    chosen = 1.0 - (1.0 - spec.expert_share) ** num_tokens
    return spec.weight_bytes + spec.expert_bytes * (chosen - spec.expert_share)


def kv_moved(spec: ModelSpec, readings: Sequence[Reading]) -> float:
    """Bytes of KV that the rows' queries read, and that their new tokens write."""
    rows = readings[0].rows
    written = sum(bytes_per_token(group) for group in spec.kv_specs) * rows.row_T.size
    if spec.maybe_kv_read is not None:
        fixed, per_token = spec.maybe_kv_read
        return written + fixed * rows.num_rows + per_token * int(rows.kv_len_R.sum())
    read = sum(
        bytes_per_token(group) * reading.num_words for group, reading in zip(spec.kv_specs, readings, strict=True)
    )
    return written + read
