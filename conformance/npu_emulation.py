"""torch_npu's operators as the Ascend backend uses them, emulated with CPU numbers and with their constraints.

A device does not check most of these: it reads out of bounds, uses a default nobody meant, or returns wrong
numbers. Here each violation raises ConstraintError. Signatures are those of torch_npu 2.13 (the schema check
compares them); parameters that the backend has no use for are left out. What runs here is "emulated": it
says that calls are well formed and compose, never that a device gives these numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.ops import ActivationSpec, NormSpec, SwigluClippedSpec
from isoinfer.backends.ops.activation import silu_mul_reference, swiglu_clipped_reference
from isoinfer.backends.ops.dtypes import compute_dtype, dtype_name
from isoinfer.backends.ops.norm import rms_norm_reference
from isoinfer.conformance import npu_emulation_attention as fused
from isoinfer.conformance import npu_emulation_moe as moe
from isoinfer.conformance.npu_emulation_graph import Recorder
from isoinfer.conformance.npu_emulation_rules import (
    require,
    require_contiguous,
    require_dtype,
    require_same_dtype,
)

P = ParamSpec("P")
R = TypeVar("R")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _operator(
    method: Callable[Concatenate[EmulatedNpu, P], R],
) -> Callable[Concatenate[EmulatedNpu, P], R]:
    """Runs the operator through the recorder, so that a graph captures it as one task."""

    def call(self: EmulatedNpu, /, *args: P.args, **kwargs: P.kwargs) -> R:
        def run(*args: Any, **kwargs: Any) -> R:
            return method(self, *args, **kwargs)

        result: R = self.recorder.run(run, args, kwargs)
        return result

    call.__wrapped__ = method  # type: ignore[attr-defined]
    return call


class EmulatedNpu:
    """The namespace `torch.ops.npu` for one chip. `calls` counts operators by name."""

    def __init__(self, soc: Soc, recorder: Recorder | None = None) -> None:
        self.soc = soc
        self.recorder = recorder or Recorder()
        self.calls: dict[str, int] = {}

    def _count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    @_operator
    def npu_rms_norm(
        self, input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows normalised by their root mean square, and the reciprocal of it."""
        self._count("npu_rms_norm")
        _check_norm(input, gamma)
        out = rms_norm_reference(_norm_spec(input, epsilon), input, gamma)
        return out, torch.rsqrt(input.float().square().mean(-1, keepdim=True) + epsilon)

    @_operator
    def npu_add_rms_norm(
        self, x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The norm of x1 + x2, its reciprocal, and the sum: all fresh."""
        self._count("npu_add_rms_norm")
        _check_norm(x1, gamma)
        require(x1.shape == x2.shape, "x1 and x2 must have one shape", x1.shape, x2.shape)
        require_contiguous(x2=x2)
        total = x1 + x2
        out = rms_norm_reference(_norm_spec(x1, epsilon), total, gamma)
        return out, torch.rsqrt(total.float().square().mean(-1, keepdim=True) + epsilon), total

    @_operator
    def npu_swiglu(self, input: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """silu of the first half times the second."""
        self._count("npu_swiglu")
        _check_halves(input, dim)
        return silu_mul_reference(ActivationSpec(intermediate_size=input.shape[-1] // 2, dtype=""), input)

    @_operator
    def npu_clipped_swiglu(
        self,
        x: torch.Tensor,
        *,
        dim: int = -1,
        alpha: float = 1.702,
        limit: float = 7.0,
        bias: float = 1.0,
        interleaved: bool = True,
    ) -> torch.Tensor:
        """The clipped form. `interleaved`: gates and ups in turn, which is the default."""
        self._count("npu_clipped_swiglu")
        _check_halves(x, dim)
        require(bias == 1.0, "only bias 1 is emulated", bias)
        halves = torch.cat((x[..., 0::2], x[..., 1::2]), -1) if interleaved else x
        spec = SwigluClippedSpec(intermediate_size=x.shape[-1] // 2, alpha=alpha, limit=limit, dtype="")
        return swiglu_clipped_reference(spec, halves)

    @_operator
    def npu_rotary_mul(
        self, input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
    ) -> torch.Tensor:
        """Rotation of `[B, S, N, D]` by cos and sin `[1, S, 1, D]`."""
        self._count("npu_rotary_mul")
        _check_rotary(input, r1, r2, rotary_mode)
        x, cos, sin = (t.to(compute_dtype(input)) for t in (input, r1, r2))
        if rotary_mode == "half":
            a, b = x.chunk(2, -1)
            turned = torch.cat((-b, a), -1)
        else:
            turned = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
        return (x * cos + turned * sin).to(input.dtype)

    @_operator
    def npu_scatter_pa_kv_cache(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        *,
        cache_mode: str | None = "PA_NZ",
    ) -> None:
        """K and V into `[B, S, K, D]` caches at distinct slots."""
        self._count("npu_scatter_pa_kv_cache")
        fused.scatter(key, value, key_cache, value_cache, slot_mapping, cache_mode)

    @_operator
    def npu_fused_infer_attention_score_v2(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        atten_mask: torch.Tensor | None = None,
        actual_seq_qlen: Any = None,
        actual_seq_kvlen: Any = None,
        block_table: torch.Tensor | None = None,
        learnable_sink: torch.Tensor | None = None,
        num_query_heads: int = 1,
        num_key_value_heads: int = 0,
        softmax_scale: float | None = None,
        pre_tokens: int = fused.NO_LIMIT,
        next_tokens: int = fused.NO_LIMIT,
        input_layout: str = "BSH",
        sparse_mode: int = 0,
        block_size: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention over paged KV. `softmax_scale` has the default 1.0 on a device; here it must be given."""
        self._count("npu_fused_infer_attention_score_v2")
        call = fused.FusedCall(
            query=query,
            key=key,
            value=value,
            mask=atten_mask,
            q_ends=actual_seq_qlen,
            kv_lens=actual_seq_kvlen,
            table=block_table,
            sinks=learnable_sink,
            num_heads=num_query_heads,
            num_kv_heads=num_key_value_heads,
            scale=softmax_scale,
            pre_tokens=pre_tokens,
            next_tokens=next_tokens,
            layout=input_layout,
            sparse_mode=sparse_mode,
            block_size=block_size,
        )
        return fused.attend(call, one_phase=self.soc.name == "950")

    @_operator
    def npu_moe_gating_top_k(
        self,
        x: torch.Tensor,
        k: int,
        *,
        k_group: int = 1,
        group_count: int = 1,
        renorm: int = 0,
        norm_type: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Softmax over all experts and the best k of it, never renormalised."""
        self._count("npu_moe_gating_top_k")
        return moe.gate(x, k, k_group, group_count, renorm, norm_type)

    @_operator
    def npu_moe_init_routing_v2(
        self,
        x: torch.Tensor,
        expert_idx: torch.Tensor,
        *,
        active_num: int = -1,
        expert_num: int = -1,
        expert_tokens_num_type: int = 0,
        expert_tokens_num_flag: bool = False,
        quant_mode: int = -1,
        active_expert_range: list[int] | None = None,
        row_idx_type: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows sorted by expert, the place of each (token, choice) among them, and counts by expert."""
        self._count("npu_moe_init_routing_v2")
        require(quant_mode == -1 and row_idx_type == 0, "only unquantised gather indices are emulated")
        require(expert_tokens_num_flag and expert_tokens_num_type == 1, "only counts are emulated")
        return moe.route(x, expert_idx, active_num, expert_num, active_expert_range)

    @_operator
    def npu_grouped_matmul(
        self,
        x: list[torch.Tensor],
        weight: list[torch.Tensor],
        *,
        bias: list[torch.Tensor] | None = None,
        group_list: torch.Tensor | None = None,
        split_item: int | None = 0,
        group_type: int | None = None,
        group_list_type: int | None = 0,
    ) -> list[torch.Tensor]:
        """One product a group of rows."""
        self._count("npu_grouped_matmul")
        require(bias is None, "biases are not emulated")
        return moe.grouped_matmul(x, weight, group_list, split_item, group_type, group_list_type)

    @_operator
    def npu_moe_token_unpermute(
        self, permuted_tokens: torch.Tensor, sorted_indices: torch.Tensor, probs: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The weighted sum of each token's rows."""
        self._count("npu_moe_token_unpermute")
        return moe.unpermute(permuted_tokens, sorted_indices, probs)


def operators() -> dict[str, Callable[..., Any]]:
    """Every emulated operator by name, with its own signature."""
    return {name: method.__wrapped__ for name, method in vars(EmulatedNpu).items() if name.startswith("npu_")}


def _norm_spec(x: torch.Tensor, eps: float) -> NormSpec:
    return NormSpec(hidden_size=x.shape[-1], eps=eps, dtype=dtype_name(x.dtype))


def _check_norm(x: torch.Tensor, gamma: torch.Tensor) -> None:
    require_dtype(FLOATS, x=x)
    require_same_dtype(x=x, gamma=gamma)
    require_contiguous(x=x, gamma=gamma)
    require(gamma.shape == x.shape[-1:], "gamma must have the length of a row", gamma.shape, x.shape)


def _check_halves(x: torch.Tensor, dim: int) -> None:
    require_dtype(FLOATS, x=x)
    require_contiguous(x=x)
    require(dim in (-1, x.dim() - 1), "only the last dim is emulated", dim)
    require(x.shape[-1] % 2 == 0, "the last dim must be even", x.shape)


def _check_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> None:
    require_same_dtype(x=x, cos=cos, sin=sin)
    require_contiguous(x=x)
    require(mode in ("half", "interleave"), "rotary_mode is half or interleave", mode)
    require(x.dim() == cos.dim() == sin.dim() == 4, "x, cos and sin must have four dims", x.shape, cos.shape)
    require(x.shape[-1] % 2 == 0 and x.shape[-1] < 896, "the head dim must be even and under 896", x.shape)
    require(x.shape[0] < 1000 and x.shape[2] < 1000, "batch and heads must be under 1000", x.shape)
    require(cos.shape == sin.shape == (1, x.shape[1], 1, x.shape[3]), "cos and sin must be [1, S, 1, D]", cos.shape)
