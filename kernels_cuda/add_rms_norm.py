"""Residual addition and RMS normalisation in one pass: the residual is updated in place, then normed as it was rounded.

Suffixes: T tokens (rows), H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import NormSpec
from isoinfer.kernels_cuda.rms_norm import RmsNormDesc, descriptions, pick_config, refuse

__all__ = ["case", "cases", "descriptions", "make_add_rms_norm", "pick_config", "refuse"]


@triton.jit(do_not_specialize=["num_rows"])
def add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    x_stride,
    residual_stride,
    hidden_size,
    eps,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    row_T1 = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)[:, None]
    offset_1H = tl.arange(0, BLOCK_H)[None, :]
    inside_TH = (row_T1 < num_rows) & (offset_1H < hidden_size)
    x_TH = tl.load(x_ptr + row_T1 * x_stride + offset_1H, mask=inside_TH, other=0.0).to(tl.float32)
    residual_ptr_TH = residual_ptr + row_T1 * residual_stride + offset_1H
    residual_TH = tl.load(residual_ptr_TH, mask=inside_TH, other=0.0).to(tl.float32)
    sum_TH = (x_TH + residual_TH).to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr_TH, sum_TH, mask=inside_TH)
    y_TH = sum_TH.to(tl.float32)
    rstd_T1 = 1.0 / tl.sqrt_rn(tl.sum(y_TH * y_TH, axis=1, keep_dims=True) / hidden_size + eps)
    weight_1H = tl.load(weight_ptr + offset_1H, mask=offset_1H < hidden_size, other=0.0).to(tl.float32)
    y_TH = y_TH * rstd_T1 * weight_1H
    tl.store(out_ptr + row_T1 * hidden_size + offset_1H, y_TH.to(out_ptr.dtype.element_ty), mask=inside_TH)


def case(desc: RmsNormDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    return KernelCase(
        kernel=add_rms_norm_kernel,
        signature=(
            ("x_ptr", pointer),
            ("residual_ptr", pointer),
            ("weight_ptr", pointer),
            ("out_ptr", pointer),
            ("num_rows", "i32"),
            ("x_stride", "i32:16"),
            ("residual_stride", "i32:16"),
            ("hidden_size", "i32:16"),
            ("eps", "fp32"),
        ),
        constants={"BLOCK_T": config.block_t, "BLOCK_H": config.block_h},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def make_add_rms_norm(spec: NormSpec, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """add_rms_norm(x_TH, residual_TH, weight_H) -> normed_TH; residual_TH += x_TH. Both may be strided in T."""
    desc = RmsNormDesc(hidden_size=spec.hidden_size, dtype=spec.dtype)
    launch, block_t = launcher.prepare(case(desc)), pick_config(desc).block_t
    hidden_size, eps = spec.hidden_size, spec.eps

    def add_rms_norm(x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
        rows = x_TH.shape[0]
        out_TH = x_TH.new_empty((rows, hidden_size))
        if rows:
            strides = x_TH.stride(0), residual_TH.stride(0)
            grid = (-(-rows // block_t),)
            launch(grid, x_TH, residual_TH, weight_H, out_TH, rows, *strides, hidden_size, eps)
        return out_TH

    return add_rms_norm
