"""RMS normalisation, with or without the addition of a residual first. One rounding after the weight.

Short rows come several to a tile, and a row that fits a tile is read once. Longer rows are read twice, piece
by piece. Cores take tiles in turn. `add_rms_norm` is the same kernels with ADD.

Suffixes: T tokens (rows), H hidden size (or a piece of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launch, Launcher
from isoinfer.backends.ops import NormSpec
from isoinfer.kernels_ascend.memory import tile_size

DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = (64, 256, 1024)
"""Row lengths that have tiles of their own. Others take the whole tile, or pieces of that size."""
LIVE_BYTES = 20
"""Of an element: four float32 tiles and two of the input's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNormDesc:
    """What a configuration depends on. `tile`: elements that fit the chip's buffer."""

    hidden_size: int
    tile: int
    add: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNormConfig:
    """`block_t` rows of `block_h` elements a tile. `whole`: a row fits."""

    block_t: int
    block_h: int
    whole: bool


def tile_of(soc: Soc) -> int:
    """Elements of a tile on this chip."""
    return tile_size(
        ub_bytes=soc.ub_bytes, double_buffer=soc.double_buffer, live_bytes=LIVE_BYTES, itemsize=2, limit=8192
    )


def pick_config(desc: RmsNormDesc) -> RmsNormConfig:
    """The narrowest tile that a row fits; several rows share it up to half of the buffer."""
    block_h = next((width for width in WIDTHS if desc.hidden_size <= width), desc.tile)
    block_t = max(1, desc.tile // (2 * block_h))
    return RmsNormConfig(block_t=block_t, block_h=block_h, whole=desc.hidden_size <= block_h)


def descriptions(soc: Soc, *, add: bool = False) -> Iterator[RmsNormDesc]:
    """One description for every configuration that `pick_config` can return on this chip."""
    tile = tile_of(soc)
    for dtype in DTYPES:
        for hidden_size in (*WIDTHS, tile, tile + 1):
            yield RmsNormDesc(hidden_size=hidden_size, tile=tile, add=add, dtype=dtype)


@triton.jit(do_not_specialize=["rows", "x_stride", "residual_stride", "hidden_size"])
def norm_rows_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    rows,
    x_stride,
    residual_stride,
    hidden_size,
    eps,
    ADD: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    h = tl.arange(0, BLOCK_H)
    weight_H = tl.load(weight_ptr + h, mask=h < hidden_size, other=0.0).to(tl.float32)
    for item in range(tl.program_id(0), (rows + BLOCK_T - 1) // BLOCK_T, tl.num_programs(0)):
        row_T = item * BLOCK_T + tl.arange(0, BLOCK_T)
        inside_TH = (row_T < rows)[:, None] & (h < hidden_size)[None, :]
        x_TH = tl.load(x_ptr + row_T[:, None] * x_stride + h[None, :], mask=inside_TH, other=0.0).to(tl.float32)
        if ADD:
            at_TH = residual_ptr + row_T[:, None] * residual_stride + h[None, :]
            x_TH += tl.load(at_TH, mask=inside_TH, other=0.0).to(tl.float32)
            sum_TH = x_TH.to(residual_ptr.dtype.element_ty)
            tl.store(at_TH, sum_TH, mask=inside_TH)
            x_TH = sum_TH.to(tl.float32)
        rstd_T = 1.0 / tl.sqrt(tl.sum(x_TH * x_TH, axis=1) / hidden_size + eps)
        y_TH = x_TH * rstd_T[:, None] * weight_H[None, :]
        at_TH = out_ptr + row_T[:, None] * hidden_size + h[None, :]
        tl.store(at_TH, y_TH.to(out_ptr.dtype.element_ty), mask=inside_TH)


@triton.jit(do_not_specialize=["rows", "x_stride", "residual_stride", "hidden_size"])
def norm_long_rows_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    rows,
    x_stride,
    residual_stride,
    hidden_size,
    eps,
    ADD: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    h = tl.arange(0, BLOCK_H)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        source = x_ptr + x_stride.to(tl.int64) * row
        residual = residual_ptr + residual_stride.to(tl.int64) * row
        target = out_ptr + hidden_size.to(tl.int64) * row
        square_H = tl.zeros([BLOCK_H], tl.float32)
        for start in range(0, hidden_size, BLOCK_H):
            inside_H = start + h < hidden_size
            x_H = tl.load(source + start + h, mask=inside_H, other=0.0).to(tl.float32)
            if ADD:
                x_H += tl.load(residual + start + h, mask=inside_H, other=0.0).to(tl.float32)
                x_H = x_H.to(residual_ptr.dtype.element_ty).to(tl.float32)
            square_H += x_H * x_H
        rstd = 1.0 / tl.sqrt(tl.sum(square_H, axis=0) / hidden_size + eps)
        for start in range(0, hidden_size, BLOCK_H):
            inside_H = start + h < hidden_size
            x_H = tl.load(source + start + h, mask=inside_H, other=0.0).to(tl.float32)
            if ADD:
                x_H += tl.load(residual + start + h, mask=inside_H, other=0.0).to(tl.float32)
                sum_H = x_H.to(residual_ptr.dtype.element_ty)
                tl.store(residual + start + h, sum_H, mask=inside_H)
                x_H = sum_H.to(tl.float32)
            weight_H = tl.load(weight_ptr + start + h, mask=inside_H, other=0.0).to(tl.float32)
            tl.store(target + start + h, (x_H * rstd * weight_H).to(out_ptr.dtype.element_ty), mask=inside_H)


def case(desc: RmsNormDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), POINTERS[desc.dtype]
    rows = {"BLOCK_T": config.block_t} if config.whole else {}
    return KernelCase(
        kernel=norm_rows_kernel if config.whole else norm_long_rows_kernel,
        signature=(
            *((name, pointer) for name in ("x_ptr", "residual_ptr", "weight_ptr", "out_ptr")),
            *((name, "i32") for name in ("rows", "x_stride", "residual_stride", "hidden_size")),
            ("eps", "fp32"),
        ),
        constants={"ADD": desc.add, **rows, "BLOCK_H": config.block_h},
        options={},
    )


def refuse(spec: NormSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return "" if spec.dtype in DTYPES else f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"


def prepare(spec: NormSpec, soc: Soc, launcher: Launcher, *, add: bool) -> Launch:
    """The launch that serves `spec`."""
    return launcher.prepare(
        case(RmsNormDesc(hidden_size=spec.hidden_size, tile=tile_of(soc), add=add, dtype=spec.dtype))
    )


def make_rms_norm(spec: NormSpec, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """rms_norm(x_TH, weight_H) -> out_TH. x may be strided in T."""
    launch, grid = prepare(spec, soc, launcher, add=False), (soc.vector_cores,)
    hidden_size, eps = spec.hidden_size, spec.eps

    def rms_norm(x_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
        rows, stride = x_TH.shape[0], x_TH.stride(0)
        out_TH = x_TH.new_empty((rows, hidden_size))
        if rows:
            launch(grid, x_TH, x_TH, weight_H, out_TH, rows, stride, stride, hidden_size, eps)
        return out_TH

    return rms_norm
