"""Mixture of experts: rows sorted by expert, then each of the two products in one launch over all experts.

Tiles are those of linear, for the same reason: a row's bits depend on no other row. Cores walk over the experts,
counting items, and take every num_cores-th; where an expert's rows start is read on the device. The rows and the
activation are other ops. What is left, sorting and the weighted sum over a token's experts, in their order, is torch's
and element by element.

Suffixes: T tokens, H hidden, E experts, X experts per token, P = T * X sorted rows, F = E + 1 starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.moe import bind_activation
from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import GATHER_ROWS, DenseWeight, GatherSpec, MoeSpec, OpSpec, torch_dtype
from isoinfer.kernels_ascend.linear import BLOCK_M, DEPTH_BYTES, DTYPES, multiply_tile, width_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsDesc:
    """What a configuration depends on. `width`: outputs of the widest tile that fits the chip."""

    width: int
    bias: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Tiles of `block_m` rows and `block_n` outputs, summed over `block_k` inputs at a time."""

    block_m: int
    block_n: int
    block_k: int


def pick_config(desc: ExpertsDesc) -> ExpertsConfig:
    """The widest tile: many experts keep the cores busy."""
    return ExpertsConfig(block_m=BLOCK_M, block_n=desc.width, block_k=DEPTH_BYTES // torch_dtype(desc.dtype).itemsize)


def descriptions(soc: Soc) -> Iterator[ExpertsDesc]:
    """One description for every configuration on this chip."""
    for dtype in DTYPES:
        for bias in (False, True):
            yield ExpertsDesc(width=width_of(soc, dtype, dtype), bias=bias, dtype=dtype)


@triton.jit(do_not_specialize=["num_experts", "x_stride", "num_outputs", "num_inputs"])
def expert_linear_kernel(
    x_ptr,
    start_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_experts,
    x_stride,
    num_outputs,
    num_inputs,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    cores = tl.num_programs(0)
    items = 0  # those of the experts before this one
    for expert in range(num_experts):
        first = tl.load(start_ptr + expert)
        rows = tl.load(start_ptr + expert + 1) - first
        row_tiles = (rows + BLOCK_M - 1) // BLOCK_M
        expert_items = row_tiles * ((num_outputs + BLOCK_N - 1) // BLOCK_N)
        for item in range((tl.program_id(0) - items % cores + cores) % cores, expert_items, cores):
            row, output = item % row_tiles * BLOCK_M, item // row_tiles * BLOCK_N
            at = num_outputs.to(tl.int64) * expert + output
            multiply_tile(
                x_ptr + x_stride.to(tl.int64) * (first + row),
                weight_ptr + at * num_inputs,
                bias_ptr + at,
                out_ptr + num_outputs.to(tl.int64) * (first + row) + output,
                rows - row,
                num_outputs - output,
                x_stride,
                num_inputs,
                num_outputs,
                HAS_BIAS,
                BLOCK_M,
                BLOCK_N,
                BLOCK_K,
            )
        items += expert_items


def case(desc: ExpertsDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), POINTERS[desc.dtype]
    return KernelCase(
        kernel=expert_linear_kernel,
        signature=(
            ("x_ptr", pointer),
            ("start_ptr", "*i32"),
            *((name, pointer) for name in ("weight_ptr", "bias_ptr", "out_ptr")),
            *((name, "i32") for name in ("num_experts", "x_stride", "num_outputs", "num_inputs")),
        ),
        constants={
            "HAS_BIAS": desc.bias,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
        },
        options={},
    )


def refuse(spec: MoeSpec) -> str:
    """Why these kernels do not serve `spec`, or "" if they do."""
    return "" if spec.dtype in DTYPES else f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"


def make_moe_experts(
    spec: MoeSpec, soc: Soc, launcher: Launcher, bind: Callable[[OpSpec, Any], Callable[..., torch.Tensor]]
) -> Callable[..., torch.Tensor]:
    """moe_experts(x_TH, weights_TX, ids_TX, w13, w2, b13_E2I | None, b2_EH | None) -> out_TH. x may be strided in T."""
    desc = ExpertsDesc(width=width_of(soc, spec.dtype, spec.dtype), bias=spec.bias, dtype=spec.dtype)
    launch, grid = launcher.prepare(case(desc)), (soc.cube_cores,)
    gather = bind(GATHER_ROWS, GatherSpec(width=spec.hidden_size, dtype=spec.dtype))
    activation = bind_activation(spec, bind)

    def product(
        x_PK: torch.Tensor, start_F: torch.Tensor, weight: DenseWeight, bias_EN: torch.Tensor | None
    ) -> torch.Tensor:
        weight_ENK = weight.tensor_NK
        outputs, inputs = weight_ENK.shape[1:]
        out_PN = x_PK.new_empty((x_PK.shape[0], outputs))
        bias = weight_ENK if bias_EN is None else bias_EN
        launch(grid, x_PK, start_F, weight_ENK, bias, out_PN, spec.num_experts, x_PK.stride(0), outputs, inputs)
        return out_PN

    def moe_experts(
        x_TH: torch.Tensor,
        weights_TX: torch.Tensor,
        ids_TX: torch.Tensor,
        w13: DenseWeight,
        w2: DenseWeight,
        b13_E2I: torch.Tensor | None,
        b2_EH: torch.Tensor | None,
    ) -> torch.Tensor:
        sorted_P, order_P = torch.sort(ids_TX.flatten(), stable=True)
        expert_F1 = torch.arange(spec.num_experts + 1, dtype=torch.int32, device=x_TH.device)[:, None]
        start_F = (sorted_P[None, :] < expert_F1).sum(1, dtype=torch.int32)
        x_PH = gather(x_TH, (order_P // spec.top_k).to(torch.int32))
        y_PH = product(activation(product(x_PH, start_F, w13, b13_E2I)), start_F, w2, b2_EH)
        y_TXH = torch.empty_like(y_PH).index_copy_(0, order_P, y_PH).view(*ids_TX.shape, -1)
        out_TH = torch.zeros(x_TH.shape, dtype=torch.float32, device=x_TH.device)
        for choice in range(spec.top_k):
            out_TH.addcmul_(y_TXH[:, choice].float(), weights_TX[:, choice, None].float())
        return out_TH.to(x_TH.dtype)

    return moe_experts
