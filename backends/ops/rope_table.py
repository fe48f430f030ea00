"""Cosine and sine tables of rotary embeddings, for every scaling kind. Made once per model, on the host.

Not an op: a pure function. Frequencies equal those of transformers' rope init functions bit for bit,
so a checkpoint sees the angles that it was trained with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

RopeKind = Literal["none", "linear", "dynamic", "yarn", "llama3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParams:
    """How angles grow with position. Fields that a kind does not name are ignored by it.

    linear, dynamic: `factor`; dynamic also `max_position` (the trained context). yarn: `factor`,
    `original_max_position`, `beta_*`, `truncate`, `attention_factor` (None: derived from `factor`, or
    from `mscale` and `mscale_all_dim` when both are set). llama3: `factor`, `original_max_position`,
    `low_freq_factor`, `high_freq_factor`.
    """

    theta: float
    rotary_dim: int
    kind: RopeKind = "none"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    max_position: int = 0


def rope_table(params: RopeParams, max_pos: int) -> torch.Tensor:
    """Table `[max_pos, rotary_dim]` float32: cos of the rotary_dim/2 angles, then their sin.

    yarn's attention factor is multiplied in. For `dynamic` the base is stretched for `max_pos`, the
    longest context that the table serves; up to `max_position` it equals the unscaled table.
    """
    assert params.rotary_dim % 2 == 0, f"rotary_dim must be even, got {params.rotary_dim}"
    inv_freq_R = _inverse_frequencies(params, max_pos)
    angle_PR = torch.arange(max_pos, dtype=torch.float32)[:, None] * inv_freq_R[None, :]
    return torch.cat((angle_PR.cos(), angle_PR.sin()), dim=-1) * attention_scaling(params)


def attention_scaling(params: RopeParams) -> float:
    """The factor that yarn puts on cos and sin; 1.0 for every other kind."""
    if params.kind != "yarn":
        return 1.0
    if params.attention_factor is not None:
        return params.attention_factor
    if params.mscale and params.mscale_all_dim:
        return _yarn_mscale(params.factor, params.mscale) / _yarn_mscale(params.factor, params.mscale_all_dim)
    return _yarn_mscale(params.factor, 1.0)


def _inverse_frequencies(params: RopeParams, max_pos: int) -> torch.Tensor:
    if params.kind == "none":
        return _plain(params.theta, params.rotary_dim)
    if params.kind == "linear":
        return _plain(params.theta, params.rotary_dim) / params.factor
    if params.kind == "dynamic":
        return _dynamic(params, max_pos)
    if params.kind == "llama3":
        return _llama3(params)
    assert params.kind == "yarn", f"unknown rope kind {params.kind!r}"
    return _yarn(params)


def _plain(theta: float, rotary_dim: int) -> torch.Tensor:
    return 1.0 / (theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim))


def _dynamic(params: RopeParams, max_pos: int) -> torch.Tensor:
    assert params.max_position > 0, "dynamic rope needs max_position, the trained context"
    length = max(max_pos, params.max_position)
    stretch = (params.factor * length / params.max_position) - (params.factor - 1)
    return _plain(params.theta * stretch ** (params.rotary_dim / (params.rotary_dim - 2)), params.rotary_dim)


def _llama3(params: RopeParams) -> torch.Tensor:
    inv_freq = _plain(params.theta, params.rotary_dim)
    context, low, high = params.original_max_position, params.low_freq_factor, params.high_freq_factor
    wavelength = 2 * math.pi / inv_freq
    scaled = torch.where(wavelength > context / low, inv_freq / params.factor, inv_freq)
    smooth = (context / wavelength - low) / (high - low)
    between = (1 - smooth) * scaled / params.factor + smooth * scaled
    is_between = (wavelength >= context / high) & (wavelength <= context / low)
    return torch.where(is_between, between, scaled)


def _yarn(params: RopeParams) -> torch.Tensor:
    dim = params.rotary_dim
    frequency = params.theta ** (torch.arange(0, dim, 2).to(torch.float32) / dim)
    extrapolated, interpolated = 1.0 / frequency, 1.0 / (params.factor * frequency)
    low, high = _yarn_range(params)
    if low == high:
        high += 0.001  # the ramp would divide by zero
    ramp = torch.clamp((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    keep = 1 - ramp
    return interpolated * (1 - keep) + extrapolated * keep


def _yarn_range(params: RopeParams) -> tuple[float, float]:
    low = _yarn_dim(params, params.beta_fast)
    high = _yarn_dim(params, params.beta_slow)
    if params.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, params.rotary_dim - 1)


def _yarn_dim(params: RopeParams, rotations: float) -> float:
    """The dimension whose angle turns `rotations` times over the original context."""
    turns = params.original_max_position / (rotations * 2 * math.pi)
    return (params.rotary_dim * math.log(turns)) / (2 * math.log(params.theta))


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
