"""Ops served by torch_npu's fused operators, where their constraints hold.

`npu` is the namespace of the operators: `torch.ops.npu` on a device and under FakeTensor, an emulation in
tests. The same functions run in each. Suffixes: T tokens, H hidden, I intermediate, N/K heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isoinfer.backends.ops import ActivationSpec, CanonicalKV, KVWriteSpec, NormSpec, RopeSpec, SwigluClippedSpec

Function = Callable[..., Any]
MAX_ROTARY = 896


def make_rms_norm(spec: NormSpec, npu: Any) -> Function:
    """rms_norm(x_TH, weight_H) -> out_TH."""

    def rms_norm(x_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
        out_TH: torch.Tensor = npu.npu_rms_norm(x_TH.contiguous(), weight_H, spec.eps)[0]
        return out_TH

    return rms_norm


def make_add_rms_norm(spec: NormSpec, npu: Any) -> Function:
    """add_rms_norm(x_TH, residual_TH, weight_H) -> normed_TH; the operator's fresh sum is copied into the residual."""

    def add_rms_norm(x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
        normed_TH, _, sum_TH = npu.npu_add_rms_norm(x_TH.contiguous(), residual_TH.contiguous(), weight_H, spec.eps)
        residual_TH.copy_(sum_TH)
        out_TH: torch.Tensor = normed_TH
        return out_TH

    return add_rms_norm


def make_silu_mul(spec: ActivationSpec, npu: Any) -> Function:
    """silu_mul(x_T2I) -> out_TI."""

    def silu_mul(x_T2I: torch.Tensor) -> torch.Tensor:
        out_TI: torch.Tensor = npu.npu_swiglu(x_T2I.contiguous(), dim=-1)
        return out_TI

    return silu_mul


def make_swiglu_clipped(spec: SwigluClippedSpec, npu: Any) -> Function:
    """swiglu_clipped(x_T2I) -> out_TI. The operator's default is gates and ups in turn; ours are halves."""

    def swiglu_clipped(x_T2I: torch.Tensor) -> torch.Tensor:
        out_TI: torch.Tensor = npu.npu_clipped_swiglu(
            x_T2I.contiguous(), dim=-1, alpha=spec.alpha, limit=spec.limit, bias=1.0, interleaved=False
        )
        return out_TI

    return swiglu_clipped


def refuse_rope(spec: RopeSpec) -> str:
    """Why npu_rotary_mul does not serve `spec`, or ""."""
    if spec.dtype != "float32":
        return f"npu_rotary_mul takes cos and sin in the dtype of x, so angles would be rounded to {spec.dtype}"
    if spec.rotary_dim >= MAX_ROTARY:
        return f"npu_rotary_mul rotates fewer than {MAX_ROTARY} dims, not {spec.rotary_dim}"
    return ""


def make_rope(spec: RopeSpec, npu: Any) -> Function:
    """rope(q_TND, k_TKD, positions_T, cos_sin_PR): in place."""
    mode, rotary = ("interleave" if spec.interleaved else "half"), spec.rotary_dim

    def spread(angle_TR: torch.Tensor) -> torch.Tensor:
        wide_TR = angle_TR.repeat_interleave(2, -1) if spec.interleaved else torch.cat((angle_TR, angle_TR), -1)
        return wide_TR[None, :, None]

    def rope(q_TND: torch.Tensor, k_TKD: torch.Tensor, positions_T: torch.Tensor, cos_sin_PR: torch.Tensor) -> None:
        cos_TR, sin_TR = cos_sin_PR.index_select(0, positions_T).chunk(2, -1)
        cos_1T1R, sin_1T1R = spread(cos_TR), spread(sin_TR)
        for x_TND in (q_TND, k_TKD):
            part_TND = x_TND[..., :rotary]
            part_TND.copy_(npu.npu_rotary_mul(part_TND.contiguous()[None], cos_1T1R, sin_1T1R, mode)[0])

    return rope


def make_kv_write(spec: KVWriteSpec, npu: Any) -> Function:
    """kv_write(k_TKD, v_TKD, kv, slots_T). Slots must be distinct and in range: the operator does not look."""

    def kv_write(k_TKD: torch.Tensor, v_TKD: torch.Tensor, kv: CanonicalKV, slots_T: torch.Tensor) -> None:
        npu.npu_scatter_pa_kv_cache(
            k_TKD.contiguous(), v_TKD.contiguous(), kv.k_BSKD, kv.v_BSKD, slots_T, cache_mode="Norm"
        )

    return kv_write
