"""Matrix product with fixed tiles: a row's bits depend on no other row, nor on how many there are.

Every output is one sum over K in ascending tiles, by one program, whatever T is; the tiles are chosen by the
weight's shape, the type and the chip alone. `--deterministic` runs on it; cuBLAS, which chooses by T as well,
is faster and serves otherwise.

Suffixes: T tokens (rows), N outputs, K inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import DenseWeight, LinearSpec

DTYPES = ("bfloat16", "float16", "float32")
TMA_FROM = 90
"""The first capability with a tensor memory accelerator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearDesc:
    """What a configuration depends on. `sm`: compute capability, as 90."""

    sm: int
    num_inputs: int
    num_outputs: int
    bias: bool
    dtype: str
    out_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearConfig:
    """One program makes a tile of outputs. Inputs and outputs are counted in units of 16 where they are whole ones.

    A unit tells the compiler how far rows are apart, so that it may load and store several elements at once.
    """

    block_t: int
    block_n: int
    block_k: int
    input_unit: int
    output_unit: int
    tma: bool
    num_warps: int
    num_stages: int


def pick_config(desc: LinearDesc) -> LinearConfig:
    """128 rows fill the matrix unit and hardly slow a few: reading the weight takes longer than their product.

    Fewer outputs a program where there are few of them, so that more of the chip reads. float32 has no matrix unit:
    its products hold their operands in registers, so tiles are small. Inputs that are no whole units pass through
    registers on their way, which leaves room for one tile.
    """
    whole = desc.num_inputs % 16 == 0
    exact = whole and desc.num_outputs % 16 == 0
    units = {"input_unit": 16 if whole else 1, "output_unit": 16 if exact else 1}
    if desc.dtype == "float32":
        return LinearConfig(block_t=32, block_n=64, block_k=32, tma=False, num_warps=8, num_stages=2, **units)
    wide = whole and not (exact and desc.num_outputs <= 8192)
    return LinearConfig(
        block_t=128,
        block_n=128 if wide else 64,
        block_k=64,
        tma=whole and TMA_FROM <= desc.sm < 120,
        num_warps=8,
        num_stages=3 if whole else 1,
        **units,
    )


SIZES = ((64, 64), (64, 16384), (64, 72), (72, 64))
"""Inputs and outputs that lead to every tile and unit."""


def descriptions(sm: int) -> Iterator[LinearDesc]:
    """One description for every configuration that `pick_config` can return for `sm`, with each bias and result."""
    for dtype in DTYPES:
        for out_dtype in dict.fromkeys((dtype, "float32")):
            for bias, (inputs, outputs) in product((False, True), SIZES):
                yield LinearDesc(
                    sm=sm, num_inputs=inputs, num_outputs=outputs, bias=bias, dtype=dtype, out_dtype=out_dtype
                )


def expects(desc: LinearDesc) -> frozenset[str]:
    """What the compiled code must show."""
    matrix = {90: "wgmma", 100: "tcgen05", 103: "tcgen05"}.get(desc.sm)
    full = desc.dtype != "float32" and matrix is not None
    return frozenset(([matrix] if full and matrix else []) + (["tma"] if pick_config(desc).tma else []))


@triton.jit(do_not_specialize=["num_rows", "output_units", "input_units", "stride_units"])
def linear_kernel(
    x,
    weight,
    bias_ptr,
    out_ptr,
    num_rows,
    output_units,
    input_units,
    stride_units,
    INPUT_UNIT: tl.constexpr,
    OUTPUT_UNIT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    num_inputs, num_outputs = input_units * INPUT_UNIT, output_units * OUTPUT_UNIT
    first_row, first_output = tl.program_id(0) * BLOCK_T, tl.program_id(1) * BLOCK_N
    row_T = first_row + tl.arange(0, BLOCK_T)
    output_N = first_output + tl.arange(0, BLOCK_N)
    inside_T1, inside_N1 = (row_T < num_rows)[:, None], (output_N < num_outputs)[:, None]
    start_T1 = row_T.to(tl.int64)[:, None] * (stride_units * INPUT_UNIT)
    start_N1 = output_N.to(tl.int64)[:, None] * num_inputs
    sum_TN = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    for first_input in range(0, num_inputs, BLOCK_K):
        if TMA:  # what lies outside comes as zeros
            x_TK = x.load([first_row, first_input])
            weight_NK = weight.load([first_output, first_input])
        else:
            input_1K = first_input + tl.arange(0, BLOCK_K)[None, :]
            inside_1K = input_1K < num_inputs
            x_TK = tl.load(x + start_T1 + input_1K, mask=inside_T1 & inside_1K, other=0.0)
            weight_NK = tl.load(weight + start_N1 + input_1K, mask=inside_N1 & inside_1K, other=0.0)
        sum_TN = tl.dot(x_TK, tl.trans(weight_NK), sum_TN, input_precision="ieee")
    if HAS_BIAS:
        sum_TN += tl.load(bias_ptr + output_N, mask=output_N < num_outputs, other=0.0).to(tl.float32)[None, :]
    offset_TN = row_T.to(tl.int64)[:, None] * num_outputs + output_N[None, :]
    inside_TN = inside_T1 & (output_N < num_outputs)[None, :]
    tl.store(out_ptr + offset_TN, sum_TN.to(out_ptr.dtype.element_ty), mask=inside_TN)


def case(desc: LinearDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    x, weight = (
        f"tensordesc<{POINTERS[desc.dtype][1:]}[{rows},{config.block_k}]>" if config.tma else pointer
        for rows in (config.block_t, config.block_n)
    )
    return KernelCase(
        kernel=linear_kernel,
        signature=(
            ("x", x),
            ("weight", weight),
            ("bias_ptr", pointer),
            ("out_ptr", f"{POINTERS[desc.out_dtype]}:16"),
            *((name, "i32") for name in ("num_rows", "output_units", "input_units", "stride_units")),
        ),
        constants={
            "INPUT_UNIT": config.input_unit,
            "OUTPUT_UNIT": config.output_unit,
            "HAS_BIAS": desc.bias,
            "TMA": config.tma,
            "BLOCK_T": config.block_t,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
        },
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), expects(desc)) for desc in descriptions(sm))


def refuse(spec: LinearSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    if spec.quant:
        return f"no {spec.quant} weights here yet"
    return "" if spec.dtype in DTYPES else f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"


def make_linear(spec: LinearSpec, sm: int, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """linear(x_TK, weight: DenseWeight, bias_N | None) -> out_TN. Rows of x may lie multiples of 16 elements apart."""
    desc = LinearDesc(
        sm=sm,
        num_inputs=spec.in_features,
        num_outputs=spec.out_features,
        bias=spec.bias,
        dtype=spec.dtype,
        out_dtype=spec.out_dtype,
    )
    launch, config = launcher.prepare(case(desc)), pick_config(desc)
    num_outputs, unit = spec.out_features, config.input_unit
    sizes = (num_outputs // config.output_unit, spec.in_features // unit)
    out_dtype: torch.dtype = getattr(torch, spec.out_dtype)
    x_box, weight_box = [config.block_t, config.block_k], [config.block_n, config.block_k]

    def linear(x_TK: torch.Tensor, weight: DenseWeight, bias_N: torch.Tensor | None) -> torch.Tensor:
        rows, weight_NK = x_TK.shape[0], weight.tensor_NK
        out_TN = x_TK.new_empty((rows, num_outputs), dtype=out_dtype)
        if rows:
            x, w = x_TK, weight_NK
            if config.tma:
                x, w = TensorDescriptor.from_tensor(x, x_box), TensorDescriptor.from_tensor(w, weight_box)
            bias = weight_NK if bias_N is None else bias_N
            grid = (-(-rows // config.block_t), -(-num_outputs // config.block_n))
            launch(grid, x, w, bias, out_TN, rows, *sizes, x_TK.stride(0) // unit)
        return out_TN

    return linear
