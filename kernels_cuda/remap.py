"""What rows take over from the round before: last tokens, drafts, corrected lengths. Several rows a program.

Only mapped rows are touched, and they are short: a tile holds the first K + 1 tokens of some rows.

Suffixes: R rows, J tokens of a row, X = R + 1, G rows of the previous round, K drafts of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import KernelCase, Launcher
from isoinfer.backends.ops import RemapSpec

MAX_DRAFTS = 63
TENSORS = (
    *("token_ids_ptr", "positions_ptr", "kv_len_ptr", "query_start_ptr", "map_ptr"),
    *("last_token_ptr", "rejected_ptr", "draft_ptr"),
)
INTS = ("num_rows", "draft_stride")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapDesc:
    """What a configuration depends on."""

    num_drafts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapConfig:
    """One program holds `block_j` tokens of each of `block_r` rows. `drafts`: there may be some."""

    block_r: int
    block_j: int
    drafts: bool


def pick_config(desc: RemapDesc) -> RemapConfig:
    """One warp, 4 tokens a thread: batches are small."""
    block_j = triton.next_power_of_2(desc.num_drafts + 1)
    return RemapConfig(block_r=128 // block_j, block_j=block_j, drafts=desc.num_drafts > 0)


def descriptions() -> Iterator[RemapDesc]:
    """One description for every configuration that `pick_config` can return."""
    yield from (RemapDesc(num_drafts=(1 << power) - 1) for power in range(MAX_DRAFTS.bit_length() + 1))


@triton.jit(do_not_specialize=INTS, do_not_specialize_on_alignment=TENSORS)
def remap_kernel(
    token_ids_ptr,
    positions_ptr,
    kv_len_ptr,
    query_start_ptr,
    map_ptr,
    last_token_ptr,
    rejected_ptr,
    draft_ptr,
    num_rows,
    draft_stride,
    DRAFTS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    row_R = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    source_R = tl.load(map_ptr + row_R, mask=row_R < num_rows, other=-1)
    mapped_R = source_R >= 0
    start_R = tl.load(query_start_ptr + row_R, mask=mapped_R, other=0)
    last_R = tl.load(last_token_ptr + source_R, mask=mapped_R, other=0)
    if DRAFTS:
        stop_R = tl.load(query_start_ptr + row_R + 1, mask=mapped_R, other=0)
        index_1J = tl.arange(0, BLOCK_J)[None, :]
        at_RJ = start_R[:, None] + index_1J
        inside_RJ = at_RJ < stop_R[:, None]
        draft_at_RJ = source_R.to(tl.int64)[:, None] * draft_stride + index_1J - 1
        draft_RJ = tl.load(draft_ptr + draft_at_RJ, mask=inside_RJ & (index_1J > 0), other=0)
        tl.store(token_ids_ptr + at_RJ, tl.where(index_1J > 0, draft_RJ, last_R[:, None]), mask=inside_RJ)
        rejected_R = tl.load(rejected_ptr + source_R, mask=mapped_R, other=0)
        position_RJ = tl.load(positions_ptr + at_RJ, mask=inside_RJ)
        tl.store(positions_ptr + at_RJ, position_RJ - rejected_R[:, None], mask=inside_RJ)
        kv_len_R = tl.load(kv_len_ptr + row_R, mask=mapped_R)
        tl.store(kv_len_ptr + row_R, kv_len_R - rejected_R, mask=mapped_R)
    else:
        tl.store(token_ids_ptr + start_R, last_R, mask=mapped_R)


def case(desc: RemapDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config = pick_config(desc)
    return KernelCase(
        kernel=remap_kernel,
        signature=(*((name, "*i32") for name in TENSORS), *((name, "i32") for name in INTS)),
        constants={"DRAFTS": config.drafts, "BLOCK_R": config.block_r, "BLOCK_J": config.block_j},
        options={"num_warps": 1},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: RemapSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return f"more than {MAX_DRAFTS} drafts a row: {spec.num_drafts}" if spec.num_drafts > MAX_DRAFTS else ""


def make_remap(spec: RemapSpec, launcher: Launcher) -> Callable[..., None]:
    """remap(token_ids_T, positions_T, kv_len_R, query_start_X, map_R, last_token_G, rejected_G, draft_GK), in place.

    draft may be strided in G; the others are contiguous.
    """
    desc = RemapDesc(num_drafts=spec.num_drafts)
    launch, block_r = launcher.prepare(case(desc)), pick_config(desc).block_r

    def remap(
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        kv_len_R: torch.Tensor,
        query_start_X: torch.Tensor,
        map_R: torch.Tensor,
        last_token_G: torch.Tensor,
        rejected_G: torch.Tensor,
        draft_GK: torch.Tensor,
    ) -> None:
        rows = map_R.shape[0]
        if rows:
            tensors = (token_ids_T, positions_T, kv_len_R, query_start_X, map_R, last_token_G, rejected_G, draft_GK)
            launch((-(-rows // block_r),), *tensors, rows, draft_GK.stride(0))

    return remap
