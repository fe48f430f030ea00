"""Matrix product with a weight, for rows whose bits no other row may change. Cores take tiles of the result in turn.

Tiles depend on the weight, the dtype and the chip, never on the number of rows, and a tile sums over the inputs from
first to last in one accumulator. So a row's result is the same alone and in any batch.

Suffixes: T rows, M rows of a tile, N outputs (or a tile of them), K inputs (or a tile of them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import DenseWeight, LinearSpec, torch_dtype
from isoinfer.kernels_ascend.memory import product_width

DTYPES = ("bfloat16", "float16", "float32")
BLOCK_M = 64
DEPTH_BYTES = 512
"""Of one row of an operand's tile: what the cube cores' transfers want."""
NARROW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearDesc:
    """What a configuration depends on. `width`: outputs of the widest tile that fits the chip."""

    num_outputs: int
    cores: int
    width: int
    bias: bool
    dtype: str
    out_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearConfig:
    """Tiles of `block_m` rows and `block_n` outputs, summed over `block_k` inputs at a time."""

    block_m: int
    block_n: int
    block_k: int


def width_of(soc: Soc, dtype: str, out_dtype: str) -> int:
    """Outputs of the widest tile on this chip."""
    return product_width(
        ub_bytes=soc.ub_bytes,
        l1_bytes=soc.l1_bytes,
        l0c_bytes=soc.l0c_bytes,
        double_buffer=soc.double_buffer,
        rows=BLOCK_M,
        depth_bytes=DEPTH_BYTES,
        out_itemsize=torch_dtype(out_dtype).itemsize,
        limit=256,
    )


def pick_config(desc: LinearDesc) -> LinearConfig:
    """The widest tile where one tile of rows then keeps every core busy twice, a narrow one otherwise."""
    enough = -(-desc.num_outputs // desc.width) >= 2 * desc.cores
    block_k = DEPTH_BYTES // torch_dtype(desc.dtype).itemsize
    return LinearConfig(block_m=BLOCK_M, block_n=desc.width if enough else min(NARROW, desc.width), block_k=block_k)


def descriptions(soc: Soc) -> Iterator[LinearDesc]:
    """One description for every configuration on this chip."""
    for dtype in DTYPES:
        for out_dtype in dict.fromkeys((dtype, "float32")):
            width = width_of(soc, dtype, out_dtype)
            for bias in (False, True):
                for num_outputs in (1, 2 * soc.cube_cores * width):
                    yield LinearDesc(
                        num_outputs=num_outputs,
                        cores=soc.cube_cores,
                        width=width,
                        bias=bias,
                        dtype=dtype,
                        out_dtype=out_dtype,
                    )


@triton.jit
def multiply_tile(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    rows,
    outputs,
    x_stride,
    num_inputs,
    out_stride,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of a result. Pointers are at its first row and output; `rows` and `outputs` are left from there on."""
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    inside_M, inside_N = m < rows, n < outputs
    at_MK = m[:, None] * x_stride + k[None, :]
    at_NK = n[:, None] * num_inputs + k[None, :]
    acc_MN = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, num_inputs, BLOCK_K):
        inside_K = start + k < num_inputs
        x_MK = tl.load(x_ptr + start + at_MK, mask=inside_M[:, None] & inside_K[None, :], other=0.0)
        w_NK = tl.load(weight_ptr + start + at_NK, mask=inside_N[:, None] & inside_K[None, :], other=0.0)
        acc_MN = tl.dot(x_MK, tl.trans(w_NK), acc_MN, input_precision="ieee")
    if HAS_BIAS:
        acc_MN = acc_MN + tl.load(bias_ptr + n, mask=inside_N, other=0.0).to(tl.float32)[None, :]
    at_MN = m[:, None] * out_stride + n[None, :]
    tl.store(out_ptr + at_MN, acc_MN.to(out_ptr.dtype.element_ty), mask=inside_M[:, None] & inside_N[None, :])


@triton.jit(do_not_specialize=["rows", "x_stride", "num_outputs", "num_inputs"])
def linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    rows,
    x_stride,
    num_outputs,
    num_inputs,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row_tiles = (rows + BLOCK_M - 1) // BLOCK_M
    items = row_tiles * ((num_outputs + BLOCK_N - 1) // BLOCK_N)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        # neighbouring cores take the rows of one part of the weight, which is then read from memory once
        row, output = item % row_tiles * BLOCK_M, item // row_tiles * BLOCK_N
        multiply_tile(
            x_ptr + x_stride.to(tl.int64) * row,
            weight_ptr + num_inputs.to(tl.int64) * output,
            bias_ptr + output,
            out_ptr + num_outputs.to(tl.int64) * row + output,
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


def case(desc: LinearDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), POINTERS[desc.dtype]
    return KernelCase(
        kernel=linear_kernel,
        signature=(
            *((name, pointer) for name in ("x_ptr", "weight_ptr", "bias_ptr")),
            ("out_ptr", POINTERS[desc.out_dtype]),
            *((name, "i32") for name in ("rows", "x_stride", "num_outputs", "num_inputs")),
        ),
        constants={
            "HAS_BIAS": desc.bias,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
        },
        options={},
    )


def refuse(spec: LinearSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    if spec.quant is not None:
        return f"no {spec.quant} weights here yet"
    if spec.dtype not in DTYPES:
        return f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"
    known = dict.fromkeys((spec.dtype, "float32"))
    return "" if spec.out_dtype in known else f"results are {' or '.join(known)}, not {spec.out_dtype}"


def make_linear(spec: LinearSpec, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """linear(x_TK, weight: DenseWeight, bias_N | None) -> out_TN. x may be strided in T."""
    desc = LinearDesc(
        num_outputs=spec.out_features,
        cores=soc.cube_cores,
        width=width_of(soc, spec.dtype, spec.out_dtype),
        bias=spec.bias,
        dtype=spec.dtype,
        out_dtype=spec.out_dtype,
    )
    launch, grid = launcher.prepare(case(desc)), (soc.cube_cores,)
    out_features, in_features, out_dtype = spec.out_features, spec.in_features, torch_dtype(spec.out_dtype)

    def linear(x_TK: torch.Tensor, weight: DenseWeight, bias_N: torch.Tensor | None) -> torch.Tensor:
        rows, weight_NK = x_TK.shape[0], weight.tensor_NK
        out_TN = x_TK.new_empty((rows, out_features), dtype=out_dtype)
        if rows:
            bias = weight_NK if bias_N is None else bias_N
            launch(grid, x_TK, weight_NK, bias, out_TN, rows, x_TK.stride(0), out_features, in_features)
        return out_TN

    return linear
