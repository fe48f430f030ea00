"""What rows take over from the round before: last tokens, drafts, corrected lengths. Cores take rows in turn.

Suffixes: J tokens of a row, X = R + 1, G rows of the previous round, K drafts of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
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
    """What a configuration depends on: whether there may be drafts."""

    drafts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapConfig:
    """`block_j`: tokens of a row that are copied at a time, all of them."""

    block_j: int


def pick_config(desc: RemapDesc) -> RemapConfig:
    """All that a row can have; without drafts one block of 32 bytes, the least that is transferred."""
    return RemapConfig(block_j=MAX_DRAFTS + 1 if desc.drafts else 8)


def descriptions() -> Iterator[RemapDesc]:
    """One description for every configuration that `pick_config` can return."""
    yield from (RemapDesc(drafts=drafts) for drafts in (False, True))


@triton.jit(do_not_specialize=INTS)
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
    BLOCK_J: tl.constexpr,
):
    index_J = tl.arange(0, BLOCK_J)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        source = tl.load(map_ptr + row)
        if source >= 0:
            start = tl.load(query_start_ptr + row)
            tl.store(token_ids_ptr + start, tl.load(last_token_ptr + source))
            if DRAFTS:
                tokens = tl.load(query_start_ptr + row + 1) - start
                if tokens > 1:
                    from_ptr = draft_ptr + source.to(tl.int64) * draft_stride
                    draft_J = tl.load(from_ptr + index_J, mask=index_J < tokens - 1)
                    tl.store(token_ids_ptr + start + 1 + index_J, draft_J, mask=index_J < tokens - 1)
                rejected = tl.load(rejected_ptr + source)
                position_J = tl.load(positions_ptr + start + index_J, mask=index_J < tokens)
                tl.store(positions_ptr + start + index_J, position_J - rejected, mask=index_J < tokens)
                tl.store(kv_len_ptr + row, tl.load(kv_len_ptr + row) - rejected)


def case(desc: RemapDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    return KernelCase(
        kernel=remap_kernel,
        signature=(*((name, "*i32") for name in TENSORS), *((name, "i32") for name in INTS)),
        constants={"DRAFTS": desc.drafts, "BLOCK_J": pick_config(desc).block_j},
        options={},
    )


def refuse(spec: RemapSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return f"more than {MAX_DRAFTS} drafts a row: {spec.num_drafts}" if spec.num_drafts > MAX_DRAFTS else ""


def make_remap(spec: RemapSpec, soc: Soc, launcher: Launcher) -> Callable[..., None]:
    """remap(token_ids_T, positions_T, kv_len_R, query_start_X, map_R, last_token_G, rejected_G, draft_GK), in place.

    draft may be strided in G; the others are contiguous.
    """
    launch, grid = launcher.prepare(case(RemapDesc(drafts=spec.num_drafts > 0))), (soc.vector_cores,)

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
            launch(grid, *tensors, rows, draft_GK.stride(0))

    return remap
