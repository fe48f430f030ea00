"""KV slots of rows whose positions were corrected on the device. One row a program, which does nothing if unmapped.

Suffixes: R rows, J tokens of a row (or a piece of them), X = R + 1, B blocks of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import KernelCase, Launcher
from isoinfer.backends.ops import RemapSlotsSpec

TENSORS = ("slots_ptr", "positions_ptr", "query_start_ptr", "map_ptr", "block_table_ptr")
INTS = ("table_stride", "block_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapSlotsDesc:
    """Nothing to choose by: block sizes are plain numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapSlotsConfig:
    """`block_j`: tokens of a row at a time."""

    block_j: int


def pick_config(desc: RemapSlotsDesc) -> RemapSlotsConfig:
    """One warp: a mapped row has its last token and some drafts."""
    return RemapSlotsConfig(block_j=32)


def descriptions() -> Iterator[RemapSlotsDesc]:
    """The only one."""
    yield RemapSlotsDesc()


@triton.jit(do_not_specialize=INTS, do_not_specialize_on_alignment=TENSORS)
def remap_slots_kernel(
    slots_ptr,
    positions_ptr,
    query_start_ptr,
    map_ptr,
    block_table_ptr,
    table_stride,
    block_size,
    BLOCK_J: tl.constexpr,
):
    row = tl.program_id(0)
    start = tl.load(query_start_ptr + row)
    stop = tl.where(tl.load(map_ptr + row) >= 0, tl.load(query_start_ptr + row + 1), start)
    table_ptr = block_table_ptr + row.to(tl.int64) * table_stride
    for first in range(start, stop, BLOCK_J):
        at_J = first + tl.arange(0, BLOCK_J)
        position_J = tl.load(positions_ptr + at_J, mask=at_J < stop, other=0)
        block_J = tl.load(table_ptr + position_J // block_size, mask=at_J < stop, other=0)
        tl.store(slots_ptr + at_J, block_J * block_size + position_J % block_size, mask=at_J < stop)


def case(desc: RemapSlotsDesc) -> KernelCase:
    """The kernel as it is launched."""
    return KernelCase(
        kernel=remap_slots_kernel,
        signature=(*((name, "*i32") for name in TENSORS), *((name, "i32") for name in INTS)),
        constants={"BLOCK_J": pick_config(desc).block_j},
        options={"num_warps": 1},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: RemapSlotsSpec) -> str:
    """Every block size is served."""
    return ""


def make_remap_slots(spec: RemapSlotsSpec, launcher: Launcher) -> Callable[..., None]:
    """remap_slots(slots_T, positions_T, query_start_X, map_R, block_table_RB), in place. Tables may be strided in R."""
    launch, block_size = launcher.prepare(case(RemapSlotsDesc())), spec.block_size

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
            launch((rows,), *tensors, block_table_RB.stride(0), block_size)

    return remap_slots
