"""Ops served by our own kernels (native/): each `make_*` returns the function that `bind` hands out.

The functions do nothing but pass pointers: no checks, no look-ups. Rows may be strided, the last
dimension (for heads: the last two) must be contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_double, c_long, c_void_p
from typing import Any

import torch

from isoinfer.backends.cpu.kv import CpuAttentionPlan, CpuLayerKV
from isoinfer.backends.cpu.native_library import NativeLibrary
from isoinfer.backends.cpu.ring_ops import OldKeys
from isoinfer.backends.cpu.weights import PackedLinear
from isoinfer.backends.ops import (
    ActivationSpec,
    AttentionSpec,
    CanonicalKV,
    KVWriteSpec,
    LinearSpec,
    LogitsSpec,
    LogprobsSpec,
    NormSpec,
    RopeKVWriteSpec,
    RopeSpec,
    SwigluClippedSpec,
)

P, L, F = c_void_p, c_long, c_double
SUFFIX = {"float32": "f32", "bfloat16": "bf16"}
Function = Callable[..., Any]


def make_rms_norm(lib: NativeLibrary, spec: NormSpec) -> Function:
    """rms_norm(x_TH, weight_H) -> out_TH."""
    kernel = lib.function(f"rms_norm_{SUFFIX[spec.dtype]}", P, L, P, P, L, L, L, F)
    hidden, eps = spec.hidden_size, spec.eps

    def rms_norm(x_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
        rows = x_TH.shape[0]
        out_TH = x_TH.new_empty((rows, hidden))
        kernel(x_TH.data_ptr(), x_TH.stride(0), weight_H.data_ptr(), out_TH.data_ptr(), hidden, rows, hidden, eps)
        return out_TH

    return rms_norm


def make_add_rms_norm(lib: NativeLibrary, spec: NormSpec) -> Function:
    """add_rms_norm(x_TH, residual_TH, weight_H) -> normed_TH; residual_TH += x_TH."""
    kernel = lib.function(f"add_rms_norm_{SUFFIX[spec.dtype]}", P, L, P, L, P, P, L, L, F)
    hidden, eps = spec.hidden_size, spec.eps

    def add_rms_norm(x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
        rows = x_TH.shape[0]
        out_TH = x_TH.new_empty((rows, hidden))
        kernel(
            x_TH.data_ptr(),
            x_TH.stride(0),
            residual_TH.data_ptr(),
            residual_TH.stride(0),
            weight_H.data_ptr(),
            out_TH.data_ptr(),
            rows,
            hidden,
            eps,
        )
        return out_TH

    return add_rms_norm


def make_silu_mul(lib: NativeLibrary, spec: ActivationSpec) -> Function:
    """silu_mul(x_T2I) -> out_TI."""
    kernel = lib.function(f"silu_mul_{SUFFIX[spec.dtype]}", P, L, P, L, L)
    size = spec.intermediate_size

    def silu_mul(x_T2I: torch.Tensor) -> torch.Tensor:
        rows = x_T2I.shape[0]
        out_TI = x_T2I.new_empty((rows, size))
        kernel(x_T2I.data_ptr(), x_T2I.stride(0), out_TI.data_ptr(), rows, size)
        return out_TI

    return silu_mul


def make_swiglu_clipped(lib: NativeLibrary, spec: SwigluClippedSpec) -> Function:
    """swiglu_clipped(x_T2I) -> out_TI."""
    kernel = lib.function(f"swiglu_clipped_{SUFFIX[spec.dtype]}", P, L, P, L, L, F, F)
    size, alpha, limit = spec.intermediate_size, spec.alpha, spec.limit

    def swiglu_clipped(x_T2I: torch.Tensor) -> torch.Tensor:
        rows = x_T2I.shape[0]
        out_TI = x_T2I.new_empty((rows, size))
        kernel(x_T2I.data_ptr(), x_T2I.stride(0), out_TI.data_ptr(), rows, size, alpha, limit)
        return out_TI

    return swiglu_clipped


def make_linear(lib: NativeLibrary, spec: LinearSpec) -> Function:
    """linear(x_TK, weight: PackedLinear, bias_N | None) -> out_TN."""
    inputs, outputs = spec.in_features, spec.out_features
    out_dtype = torch.float32 if spec.out_dtype == "float32" else torch.bfloat16
    if spec.dtype == "float32":
        kernel = lib.function(f"linear_{spec.quant}_f32" if spec.quant else "linear_f32", P, L, P, P, P, P, L, L, L, L)

        def linear_f32(x_TK: torch.Tensor, weight: PackedLinear, bias_N: torch.Tensor | None) -> torch.Tensor:
            rows = x_TK.shape[0]
            out_TN = x_TK.new_empty((rows, outputs))
            bias = None if bias_N is None else bias_N.data_ptr()
            kernel(
                x_TK.data_ptr(),
                x_TK.stride(0),
                weight.panels.data_ptr(),
                bias,
                None if weight.scale_N is None else weight.scale_N.data_ptr(),
                out_TN.data_ptr(),
                outputs,
                rows,
                outputs,
                inputs,
            )
            return out_TN

        return linear_f32
    kernel = lib.function(f"linear_{spec.quant or 'bf16'}", P, L, P, P, P, P, L, L, L, L, L)
    out_f32 = int(out_dtype == torch.float32)

    def linear(x_TK: torch.Tensor, weight: PackedLinear, bias_N: torch.Tensor | None) -> torch.Tensor:
        rows = x_TK.shape[0]
        out_TN = torch.empty((rows, outputs), dtype=out_dtype)
        bias_f32 = None if bias_N is None else bias_N.float()
        kernel(
            x_TK.data_ptr(),
            x_TK.stride(0),
            weight.panels.data_ptr(),
            None if bias_f32 is None else bias_f32.data_ptr(),
            None if weight.scale_N is None else weight.scale_N.data_ptr(),
            out_TN.data_ptr(),
            outputs,
            rows,
            outputs,
            inputs,
            out_f32,
        )
        return out_TN

    return linear


def make_rope(lib: NativeLibrary, spec: RopeSpec) -> Function:
    """rope(q_TND, k_TKD, positions_T, cos_sin_PR), in place."""
    kernel = lib.function(f"rope_{SUFFIX[spec.dtype]}", P, L, P, L, P, P, L, L, L, L, L, L)
    dim, rotary, interleaved = spec.head_dim, spec.rotary_dim, int(spec.interleaved)

    def rope(q_TND: torch.Tensor, k_TKD: torch.Tensor, positions_T: torch.Tensor, cos_sin_PR: torch.Tensor) -> None:
        tokens, heads, _ = q_TND.shape
        kernel(
            q_TND.data_ptr(),
            q_TND.stride(0),
            k_TKD.data_ptr(),
            k_TKD.stride(0),
            positions_T.data_ptr(),
            cos_sin_PR.data_ptr(),
            tokens,
            heads,
            k_TKD.shape[1],
            dim,
            rotary,
            interleaved,
        )

    return rope


def make_kv_write(lib: NativeLibrary, spec: KVWriteSpec) -> Function:
    """kv_write(k_TKD, v_TKD, kv, slots_T)."""
    kernel = lib.function(f"kv_write_{SUFFIX[spec.dtype]}", P, L, P, L, P, P, P, L, L, L)
    heads, dim = spec.num_kv_heads, spec.head_dim

    def kv_write(k_TKD: torch.Tensor, v_TKD: torch.Tensor, kv: CpuLayerKV, slots_T: torch.Tensor) -> None:
        kernel(
            k_TKD.data_ptr(),
            k_TKD.stride(0),
            v_TKD.data_ptr(),
            v_TKD.stride(0),
            slots_T.data_ptr(),
            kv.k_BKDSp.data_ptr(),
            kv.v_BKSD.data_ptr(),
            k_TKD.shape[0],
            heads,
            dim,
        )

    return kv_write


def make_ring_gather(lib: NativeLibrary, spec: KVWriteSpec) -> Function:
    """ring_gather(kv, old, blocks): what rows see of their rings, put into blocks."""
    kernel = lib.function(f"ring_gather_{SUFFIX[spec.dtype]}", P, P, P, P, P, P, P, P, L, L, L, L)
    heads, dim = spec.num_kv_heads, spec.head_dim

    def ring_gather(kv: CanonicalKV, old: OldKeys, blocks: CpuLayerKV) -> None:
        kernel(
            kv.k_BSKD.data_ptr(),
            kv.v_BSKD.data_ptr(),
            old.ring_R.data_ptr(),
            old.first_R.data_ptr(),
            old.count_R.data_ptr(),
            old.base_R.data_ptr(),
            blocks.k_BKDSp.data_ptr(),
            blocks.v_BKSD.data_ptr(),
            old.ring_R.numel(),
            kv.block_size,
            heads,
            dim,
        )

    return ring_gather


def make_rope_kv_write(lib: NativeLibrary, spec: RopeKVWriteSpec) -> Function:
    """rope_kv_write(q_TND, k_TKD, v_TKD, positions_T, cos_sin_PR, kv, slots_T)."""
    kernel = lib.function(f"rope_kv_write_{SUFFIX[spec.dtype]}", P, L, P, L, P, L, P, P, P, P, P, L, L, L, L, L, L)
    heads_kv, dim, rotary, interleaved = (
        spec.num_kv_heads,
        spec.head_dim,
        spec.rope.rotary_dim,
        int(spec.rope.interleaved),
    )

    def rope_kv_write(
        q_TND: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        positions_T: torch.Tensor,
        cos_sin_PR: torch.Tensor,
        kv: CpuLayerKV,
        slots_T: torch.Tensor,
    ) -> None:
        tokens, heads, _ = q_TND.shape
        kernel(
            q_TND.data_ptr(),
            q_TND.stride(0),
            k_TKD.data_ptr(),
            k_TKD.stride(0),
            v_TKD.data_ptr(),
            v_TKD.stride(0),
            positions_T.data_ptr(),
            cos_sin_PR.data_ptr(),
            slots_T.data_ptr(),
            kv.k_BKDSp.data_ptr(),
            kv.v_BKSD.data_ptr(),
            tokens,
            heads,
            heads_kv,
            dim,
            rotary,
            interleaved,
        )

    return rope_kv_write


def make_paged_attention(lib: NativeLibrary, spec: AttentionSpec) -> Function:
    """paged_attention(q_TND, kv, plan, sinks_N | None, out_TND)."""
    kernel = lib.function(f"attention_{SUFFIX[spec.dtype]}", P, L, P, P, P, L, P, P, P, P, L, L, L, L, F, L, F, P, P)
    heads, heads_kv, dim, scale = spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.scale
    window, softcap = spec.window or 0, spec.softcap or 0.0

    def paged_attention(
        q_TND: torch.Tensor,
        kv: CpuLayerKV,
        plan: CpuAttentionPlan,
        sinks_N: torch.Tensor | None,
        out_TND: torch.Tensor,
    ) -> None:
        sinks_f32 = None if sinks_N is None else sinks_N.float()
        kernel(
            q_TND.data_ptr(),
            q_TND.stride(0),
            kv.k_BKDSp.data_ptr(),
            kv.v_BKSD.data_ptr(),
            plan.table_RB.data_ptr(),
            plan.table_RB.stride(0),
            plan.q_start_R.data_ptr(),
            plan.q_len_R.data_ptr(),
            plan.kv_len_R.data_ptr(),
            None if plan.maybe_floor_R is None else plan.maybe_floor_R.data_ptr(),
            plan.num_rows,
            heads,
            heads_kv,
            dim,
            scale,
            window,
            softcap,
            None if sinks_f32 is None else sinks_f32.data_ptr(),
            out_TND.data_ptr(),
        )

    return paged_attention


def make_argmax(lib: NativeLibrary, spec: LogitsSpec) -> Function:
    """argmax(logits_RV) -> token_R."""
    kernel = lib.function("argmax", P, L, P, L, L)
    vocab = spec.vocab_size

    def argmax(logits_RV: torch.Tensor) -> torch.Tensor:
        token_R = torch.empty(logits_RV.shape[0], dtype=torch.int32)
        kernel(logits_RV.data_ptr(), logits_RV.stride(0), token_R.data_ptr(), logits_RV.shape[0], vocab)
        return token_R

    return argmax


def make_logprobs(lib: NativeLibrary, spec: LogprobsSpec) -> Function:
    """logprobs(logits_RV, token_R) -> (logprob_R, rank_R, top_ids_RX, top_logprobs_RX)."""
    kernel = lib.function("logprobs", P, L, P, P, P, P, P, L, L, L)
    vocab, num = spec.vocab_size, spec.num

    def logprobs(logits_RV: torch.Tensor, token_R: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = logits_RV.shape[0]
        logprob_R, rank_R = torch.empty(rows), torch.empty(rows, dtype=torch.int32)
        ids_RX, best_RX = torch.empty((rows, num), dtype=torch.int32), torch.empty((rows, num))
        outputs = (logprob_R, rank_R, ids_RX, best_RX)
        pointers = [tensor.data_ptr() for tensor in outputs]
        kernel(logits_RV.data_ptr(), logits_RV.stride(0), token_R.data_ptr(), *pointers, rows, vocab, num)
        return outputs

    return logprobs


def make_sample(lib: NativeLibrary, spec: LogitsSpec) -> Function:
    """sample(logits_RV, temperature_R, top_k_R, top_p_R, min_p_R, seed_R, position_R) -> token_R."""
    kernel = lib.function("sample", P, L, P, P, P, P, P, P, P, L, L)
    vocab = spec.vocab_size

    def sample(logits_RV: torch.Tensor, *per_row: torch.Tensor) -> torch.Tensor:
        token_R = torch.empty(logits_RV.shape[0], dtype=torch.int32)
        pointers = [tensor.data_ptr() for tensor in per_row]
        kernel(logits_RV.data_ptr(), logits_RV.stride(0), *pointers, token_R.data_ptr(), logits_RV.shape[0], vocab)
        return token_R

    return sample
