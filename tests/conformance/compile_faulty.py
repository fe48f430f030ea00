"""Compiles a copy, a matrix product for two chips, and kernels that spill and take too much shared memory.

`python compile_faulty.py FILE` writes them to FILE as a table. Run without TRITON_INTERPRET.
"""

from __future__ import annotations

import sys
from pathlib import Path

import triton
import triton.language as tl

from isoinfer.backends.kernel_case import KernelCase
from isoinfer.conformance.compiled_table import write_table
from isoinfer.conformance.cubin import compile_case


@triton.jit
def copy_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < size), mask=at < size)


@triton.jit
def spilling_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < size, other=0.0)
    tl.store(out_ptr + at, x / tl.sum(x, axis=0), mask=at < size)


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, size, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    row, k = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    c = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, size, BLOCK_K):
        a = tl.load(a_ptr + row[:, None] * size + start + k[None, :])
        b = tl.load(b_ptr + (start + k)[:, None] * BLOCK + row[None, :])
        c = tl.dot(a, b, c)
    tl.store(c_ptr + row[:, None] * BLOCK + row[None, :], c)


def elementwise(kernel: triton.JITFunction, block: int) -> KernelCase:
    signature = (("x_ptr", "*fp32:16"), ("out_ptr", "*fp32:16"), ("size", "i32:16"))
    return KernelCase(kernel=kernel, signature=signature, constants={"BLOCK": block}, options={"num_warps": 1})


def product(num_stages: int) -> KernelCase:
    matrices = tuple((name, "*bf16:16") for name in ("a_ptr", "b_ptr"))
    return KernelCase(
        kernel=product_kernel,
        signature=(*matrices, ("c_ptr", "*fp32:16"), ("size", "i32:16")),
        constants={"BLOCK": 128, "BLOCK_K": 64},
        options={"num_warps": 4, "num_stages": num_stages},
    )


if __name__ == "__main__":
    cases = [
        (elementwise(copy_kernel, 256), 90),
        (elementwise(spilling_kernel, 16384), 90),
        (product(2), 90),
        (product(2), 100),
        (product(9), 90),
    ]
    write_table(Path(sys.argv[1]), (compile_case(case, target) for case, target in cases))
