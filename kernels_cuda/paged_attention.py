"""paged_attention on CUDA: rows with one query go to the decode kernels, all others to the prefill kernel.

A planner that makes tiles only sends every row to the prefill kernel, in the form that keeps one order of sums.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from isoinfer.backends.kernel_case import Launch, Launcher
from isoinfer.backends.ops import AttentionSpec, CanonicalKV
from isoinfer.kernels_cuda import attention_decode, attention_prefill
from isoinfer.kernels_cuda.attention_decode import SPLIT, CombineDesc, DecodeDesc
from isoinfer.kernels_cuda.attention_plan import AttentionPlanner, CudaAttentionPlan
from isoinfer.kernels_cuda.attention_prefill import MAX_PLAIN_GROUP, PrefillDesc

NO_WINDOW = 1 << 30
MAX_HEAD_DIM, MAX_GROUP = 256, 64


def refuse(spec: AttentionSpec) -> str:
    """Why these kernels do not serve `spec`, or "" if they do."""
    if spec.head_dim % 16 or spec.head_dim > MAX_HEAD_DIM:
        return f"a head dim of {spec.head_dim} is not a multiple of 16 up to {MAX_HEAD_DIM}"
    group, most = spec.num_heads // spec.num_kv_heads, MAX_PLAIN_GROUP if spec.dtype == "float32" else MAX_GROUP
    if group > most:
        return f"{group} query heads share a KV head, and {most} are served in {spec.dtype}"
    if spec.softcap is not None and spec.has_sinks:
        return "softcap and sinks together are not served: no model has both"
    return f"a KV block of {spec.block_size} is not a multiple of 16" if spec.block_size % 16 else ""


def make_paged_attention(
    spec: AttentionSpec, sm: int, launcher: Launcher, planner: AttentionPlanner
) -> Callable[..., None]:
    """paged_attention(q_TND, kv, plan, sinks_N | None, out_TND). q may be strided in T."""
    prefill = _make_prefill(spec, sm, launcher, planner)
    if planner.tiles_only:
        return prefill
    decode = _make_decode(spec, launcher)

    def paged_attention(
        q_TND: torch.Tensor,
        kv: CanonicalKV,
        plan: CudaAttentionPlan,
        sinks_N: torch.Tensor | None,
        out_TND: torch.Tensor,
    ) -> None:
        if plan.decode_rows_E.numel():
            decode(q_TND, kv, plan, sinks_N, out_TND)
        if plan.tiles:
            prefill(q_TND, kv, plan, sinks_N, out_TND)

    return paged_attention


def _make_decode(spec: AttentionSpec, launcher: Launcher) -> Callable[..., None]:
    group, window = spec.num_heads // spec.num_kv_heads, spec.window or NO_WINDOW
    softcap = spec.softcap or 0.0
    desc = DecodeDesc(
        group=group,
        head_dim=spec.head_dim,
        block_size=spec.block_size,
        softcap=spec.softcap is not None,
        dtype=spec.dtype,
    )
    width = attention_decode.pick_config(desc).block_d
    launch = launcher.prepare(attention_decode.case(desc))
    combine: Launch = launcher.prepare(
        attention_decode.combine_case(CombineDesc(block_d=width, sinks=spec.has_sinks, dtype=spec.dtype))
    )
    N, K, D, scale = spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.scale

    def decode(
        q_TND: torch.Tensor,
        kv: CanonicalKV,
        plan: CudaAttentionPlan,
        sinks_N: torch.Tensor | None,
        out_TND: torch.Tensor,
    ) -> None:
        rows, splits = plan.decode_rows_E.numel(), -(-plan.max_kv_len // SPLIT)
        part = q_TND.new_empty((rows * N * splits * (width + 2),), dtype=torch.float32)
        where = (plan.decode_rows_E, plan.q_start_R, plan.kv_len_R)
        sizes = (q_TND.stride(0), plan.table_RB.stride(0), N, K, group, D, window, splits)
        launch((rows, K, splits), q_TND, kv.k_BSKD, kv.v_BSKD, *where, plan.table_RB, part, *sizes, scale, softcap)
        sinks = q_TND if sinks_N is None else sinks_N
        combine((rows, N), part, *where, sinks, out_TND, N, D, window, splits)

    return decode


def _make_prefill(spec: AttentionSpec, sm: int, launcher: Launcher, planner: AttentionPlanner) -> Callable[..., None]:
    group, window = spec.num_heads // spec.num_kv_heads, spec.window or NO_WINDOW
    softcap = spec.softcap or 0.0
    desc = PrefillDesc(
        sm=sm,
        head_dim=spec.head_dim,
        block_size=spec.block_size,
        softcap=spec.softcap is not None,
        ordered=planner.tiles_only,
        dtype=spec.dtype,
    )
    config = attention_prefill.pick_config(desc)
    queries = config.block_m // group
    launch = launcher.prepare(attention_prefill.case(desc, spec.has_sinks))
    planner.register(queries)
    N, K, D, scale = spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.scale
    box = [config.block_s, config.block_d]

    def prefill(
        q_TND: torch.Tensor,
        kv: CanonicalKV,
        plan: CudaAttentionPlan,
        sinks_N: torch.Tensor | None,
        out_TND: torch.Tensor,
    ) -> None:
        tiles = plan.tiles[queries]
        k, v = kv.k_BSKD, kv.v_BSKD
        if config.tma:
            k, v = (TensorDescriptor.from_tensor(x.view(-1, K * D), box) for x in (k, v))
        rows = (plan.q_start_R, plan.q_len_R, plan.kv_len_R, plan.table_RB)
        sinks = q_TND if sinks_N is None else sinks_N
        sizes = (q_TND.stride(0), plan.table_RB.stride(0), N, K, group, D, window)
        launch(
            (tiles.num_tiles, K), q_TND, k, v, tiles.row_P, tiles.query_P, *rows, sinks, out_TND, *sizes, scale, softcap
        )

    return prefill
