"""Which provider serves an op on the CPU, in order: our kernels, numpy, torch with the CPU's shapes, the reference.

`CpuProviders.find` lists them for the table that answers for the backend.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from isoinfer.backends.cpu import native_ops, native_speculation, remap, ring_ops, torch_ops
from isoinfer.backends.cpu.kv import BLOCK_SIZE
from isoinfer.backends.cpu.native_library import NativeLibrary
from isoinfer.backends.ops import (
    INT4_GROUP,
    LINEAR,
    SILU_MUL,
    SWIGLU_CLIPPED,
    ActivationSpec,
    LinearSpec,
    LogprobsSpec,
    OpSpec,
    SwigluClippedSpec,
    WindowAttentionSpec,
    bind_reference,
)
from isoinfer.backends.provider import Function, Provider

DTYPES = ("float32", "bfloat16")


class CpuProviders:
    """The providers of every op, for one CPU backend. `bind` binds the parts of an op that is made of others."""

    def __init__(
        self,
        native: NativeLibrary,
        *,
        deterministic: bool,
        use_onednn: bool,
        bind: Callable[[OpSpec, Any], Function],
    ) -> None:
        self._native, self._bind = native, bind
        self._deterministic = deterministic
        self._use_onednn = use_onednn
        self._specific = {**self._kernel_makers(), **self._host_makers()}

    def find(self, op: OpSpec) -> list[Provider]:
        """The providers of `op`, in order."""
        keys = [(op.name, provider) for provider in ("native", "numpy", "torch")]
        found = [self._specific[key] for key in keys if key in self._specific]
        if op.name not in CPU_SHAPED:
            found.append(Provider(name="torch", refuse=_bad_dtype, make=partial(bind_reference, op)))
        return found

    def _kernel_makers(self) -> dict[tuple[str, str], Provider]:
        makers: dict[str, tuple[Callable[[NativeLibrary, Any], Function], Callable[[Any], str]]] = {
            "rms_norm": (native_ops.make_rms_norm, _bad_dtype),
            "add_rms_norm": (native_ops.make_add_rms_norm, _bad_dtype),
            "silu_mul": (native_ops.make_silu_mul, _bad_dtype),
            "swiglu_clipped": (native_ops.make_swiglu_clipped, _bad_dtype),
            "linear": (native_ops.make_linear, self._refuse_linear),
            "rope": (native_ops.make_rope, _bad_dtype),
            "kv_write": (native_ops.make_kv_write, _bad_block),
            "rope_kv_write": (native_ops.make_rope_kv_write, _bad_block),
            "paged_attention": (native_ops.make_paged_attention, _bad_heads),
            "window_attention": (_native_window_attention, _bad_ring_heads),
            "argmax": (native_ops.make_argmax, _accept),
            "logprobs": (native_ops.make_logprobs, _few_best),
            "sample": (native_ops.make_sample, _accept),
            "verify": (native_speculation.make_verify, _accept),
            "verify_rejection": (native_speculation.make_verify_rejection, _accept),
            "append_history": (native_speculation.make_append_history, _accept),
            "propose_ngram": (native_speculation.make_propose_ngram, _accept),
            "consume_drafts": (native_speculation.make_consume_drafts, _accept),
        }
        return {
            (op, "native"): Provider(
                name="native", refuse=partial(self._refuse_native, refuse), make=partial(make, self._native)
            )
            for op, (make, refuse) in makers.items()
        }

    def _host_makers(self) -> dict[tuple[str, str], Provider]:
        invariant = self._deterministic
        return {
            ("embedding", "torch"): Provider(name="torch", refuse=_bad_dtype, make=torch_ops.make_embedding),
            ("linear", "torch"): Provider(
                name="torch",
                refuse=_bad_dtype,
                make=partial(torch_ops.make_linear, deterministic=invariant),
                batch_invariant=invariant,
            ),
            ("moe_experts", "torch"): Provider(name="torch", refuse=_bad_dtype, make=self._make_moe_experts),
            ("kv_write", "torch"): Provider(name="torch", refuse=_bad_block, make=torch_ops.make_kv_write),
            ("paged_attention", "torch"): Provider(
                name="torch",
                refuse=_bad_block,
                make=partial(torch_ops.make_paged_attention, deterministic=invariant),
                batch_invariant=invariant,
            ),
            ("window_attention", "torch"): Provider(
                name="torch",
                refuse=_bad_dtype,
                make=partial(_torch_window_attention, deterministic=invariant),
                batch_invariant=invariant,
            ),
            ("remap", "numpy"): Provider(name="numpy", refuse=_accept, make=remap.make_remap),
            ("remap_slots", "numpy"): Provider(name="numpy", refuse=_accept, make=remap.make_remap_slots),
        }

    def _make_moe_experts(self, spec: Any) -> Function:
        up = self._expert_linear(spec, spec.hidden_size, 2 * spec.intermediate_size)
        down = self._expert_linear(spec, spec.intermediate_size, spec.hidden_size)
        if spec.activation == "silu_mul":
            activation = self._bind(
                SILU_MUL, ActivationSpec(intermediate_size=spec.intermediate_size, dtype=spec.dtype)
            )
        else:
            clipped = SwigluClippedSpec(
                intermediate_size=spec.intermediate_size, alpha=spec.alpha, limit=spec.limit, dtype=spec.dtype
            )
            activation = self._bind(SWIGLU_CLIPPED, clipped)
        return torch_ops.make_moe_experts(spec, up, activation, down)

    def _expert_linear(self, spec: Any, inputs: int, outputs: int) -> Function:
        linear = LinearSpec(
            in_features=inputs,
            out_features=outputs,
            bias=spec.bias,
            quant=None,
            dtype=spec.dtype,
            out_dtype=spec.dtype,
        )
        return self._bind(LINEAR, linear)

    def _refuse_native(self, refuse: Callable[[Any], str], spec: Any) -> str:
        if self._native.library is None:
            return self._native.reason
        if getattr(spec, "dtype", "float32") == "bfloat16" and not self._native.bfloat16:
            return "our bfloat16 kernels need AVX512_BF16"
        return refuse(spec)

    def _refuse_linear(self, spec: LinearSpec) -> str:
        return _bad_dtype(spec) or self.linear_refusal(
            spec.in_features, spec.dtype, spec.quant, spec.out_dtype != spec.dtype
        )

    def linear_refusal(self, inputs: int, dtype: str, quant: str | None, widened: bool) -> str:
        """Why our linear kernel does not take a weight; `prepare_weight` asks the same, so both agree.

        `widened`: float32 results of bfloat16 products, which oneDNN would round to bfloat16 first.
        """
        if self._native.library is None:
            return self._native.reason
        if quant is None and dtype == "bfloat16" and not self._native.bfloat16:
            return "our bfloat16 kernels need AVX512_BF16"
        if quant is not None and not self._native.bfloat16:
            return f"our {quant} kernels need AVX512_BF16"
        if quant == "int4" and inputs % INT4_GROUP:
            return f"our int4 kernels need a multiple of {INT4_GROUP} input features"
        if (quant == "int8" or dtype == "bfloat16") and inputs % 2:
            return "our packed kernels need an even number of input features"
        if quant is None and self._use_onednn and not widened:
            return "oneDNN was faster in the probe at start"
        return ""


CPU_SHAPED = frozenset({"linear", "embedding", "kv_write", "rope_kv_write", "paged_attention", "moe_experts"})
"""Ops whose arguments have the CPU's own shapes, so that the reference cannot serve them."""


def _native_window_attention(native: NativeLibrary, spec: WindowAttentionSpec) -> Function:
    write = ring_ops.write_spec(spec)
    return ring_ops.make_window_attention(
        spec,
        gather=native_ops.make_ring_gather(native, write),
        write=native_ops.make_kv_write(native, write),
        attend=native_ops.make_paged_attention(native, ring_ops.attention_spec(spec)),
    )


def _torch_window_attention(spec: WindowAttentionSpec, deterministic: bool) -> Function:
    write = torch_ops.make_kv_write(ring_ops.write_spec(spec))
    attend = torch_ops.make_paged_attention(ring_ops.attention_spec(spec), deterministic)
    return ring_ops.make_window_attention(spec, gather=ring_ops.make_ring_gather(write), write=write, attend=attend)


def _accept(spec: Any) -> str:
    return ""


def _few_best(spec: LogprobsSpec) -> str:
    return "" if spec.num <= 64 else f"our kernel finds up to 64 best tokens by insertion, not {spec.num}"


def _bad_dtype(spec: Any) -> str:
    dtype = getattr(spec, "dtype", "float32")
    return "" if dtype in DTYPES else f"dtype {dtype} is not one of {', '.join(DTYPES)}"


def _bad_block(spec: Any) -> str:
    if spec.block_size != BLOCK_SIZE:
        return f"KV blocks on this backend hold {BLOCK_SIZE} tokens, not {spec.block_size}"
    return _bad_dtype(spec)


def _bad_heads(spec: Any) -> str:
    return _bad_head_dim(spec) or _bad_block(spec)


def _bad_ring_heads(spec: Any) -> str:
    return _bad_head_dim(spec) or _bad_dtype(spec)


def _bad_head_dim(spec: Any) -> str:
    return "our attention kernel needs a head dim that is a multiple of 16" if spec.head_dim % 16 else ""
