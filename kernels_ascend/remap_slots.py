"""KV slots of rows whose positions were corrected on the device. Cores take rows in turn, and their tokens one by one.

A mapped row has its last token and a few drafts, so there is little to do at once. Suffixes: R rows, T tokens,
X = R + 1, B blocks of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import KernelCase, Launcher
from isoinfer.backends.ops import RemapSlotsSpec

TENSORS = ("slots_ptr", "positions_ptr", "query_start_ptr", "map_ptr", "block_table_ptr")
INTS = ("num_rows", "table_stride", "block_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapSlotsDesc:
    """Nothing to choose by: all numbers are plain arguments."""


def descriptions() -> Iterator[RemapSlotsDesc]:
    """The only one."""
    yield RemapSlotsDesc()


@triton.jit(do_not_specialize=INTS)
def remap_slots_kernel(
    slots_ptr, positions_ptr, query_start_ptr, map_ptr, block_table_ptr, num_rows, table_stride, block_size
):
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        if tl.load(map_ptr + row) >= 0:
            table_ptr = block_table_ptr + table_stride.to(tl.int64) * row
            for token in range(tl.load(query_start_ptr + row), tl.load(query_start_ptr + row + 1)):
                position = tl.load(positions_ptr + token)
                block = tl.load(table_ptr + position // block_size)
                tl.store(slots_ptr + token, block * block_size + position % block_size)


def case(desc: RemapSlotsDesc) -> KernelCase:
    """The kernel as it is launched."""
    return KernelCase(
        kernel=remap_slots_kernel,
        signature=(*((name, "*i32") for name in TENSORS), *((name, "i32") for name in INTS)),
        constants={},
        options={},
    )


def refuse(spec: RemapSlotsSpec) -> str:
    """Every block size is served."""
    return ""


def make_remap_slots(spec: RemapSlotsSpec, soc: Soc, launcher: Launcher) -> Callable[..., None]:
    """remap_slots(slots_T, positions_T, query_start_X, map_R, block_table_RB), in place. Tables may be strided in R."""
    launch, grid = launcher.prepare(case(RemapSlotsDesc())), (soc.vector_cores,)
    block_size = spec.block_size

    def remap_slots(
        slots_T: torch.Tensor,
        positions_T: torch.Tensor,
        query_start_X: torch.Tensor,
        map_R: torch.Tensor,
        block_table_RB: torch.Tensor,
    ) -> None:
        rows = map_R.shape[0]
        if rows:
            tensors = (slots_T, positions_T, query_start_X, map_R, block_table_RB)
            launch(grid, *tensors, rows, block_table_RB.stride(0), block_size)

    return remap_slots
