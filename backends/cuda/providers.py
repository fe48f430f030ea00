"""Which provider serves an op on CUDA, in order: our Triton kernel, a library that is installed, torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from isoinfer.backends.cuda.flashinfer import FlashInfer
from isoinfer.backends.kernel_case import Launcher
from isoinfer.backends.ops import MOE_ROUTE, LinearSpec, OpSpec, RouteSpec, bind_reference
from isoinfer.backends.provider import Function, Provider
from isoinfer.backends.torch_device import torch_ops
from isoinfer.kernels_cuda import (
    add_rms_norm,
    argmax,
    bias_logits,
    embedding,
    gather_rows,
    linear,
    logprobs,
    mask_logits,
    paged_attention,
    penalize,
    remap,
    remap_slots,
    rms_norm,
    rope_kv_write,
    sample,
    silu_mul,
    swiglu_clipped,
)
from isoinfer.kernels_cuda.attention_plan import AttentionPlanner

DTYPES = ("bfloat16", "float16", "float32")
KERNELS: dict[str, ModuleType] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "silu_mul": silu_mul,
    "swiglu_clipped": swiglu_clipped,
    "gather_rows": gather_rows,
    "embedding": embedding,
    "rope_kv_write": rope_kv_write,
    "argmax": argmax,
    "sample": sample,
    "mask_logits": mask_logits,
    "penalize": penalize,
    "bias_logits": bias_logits,
    "logprobs": logprobs,
    "remap": remap,
    "remap_slots": remap_slots,
}
"""Ops whose kernel needs nothing but its spec and a launcher."""
KERNEL_OPS = frozenset({*KERNELS, "linear", "paged_attention"})
"""Ops that have a kernel."""
BY_ELEMENT = frozenset({"rope", "rope_kv_write", "silu_mul", "swiglu_clipped", "penalize", "argmax"})
"""Float ops that torch computes without a sum over a row, whose order might depend on the number of rows."""
MAX_ROUTE_EXPERTS, MAX_ROUTE_TOP_K = 1024, 32
"""Up to here torch's softmax and sum keep a row in one warp, whatever the number of rows."""


class CudaProviders:
    """The providers of every op for one architecture. `bind` binds the parts of an op that is made of others.

    `deterministic`: linear is our kernel, and moe_experts is made of it; otherwise torch's products come first.
    `library_first`: what `library` serves comes before our kernels.
    """

    def __init__(
        self,
        sm: int,
        launcher: Launcher,
        planner: AttentionPlanner,
        bind: Callable[[OpSpec, Any], Function],
        *,
        deterministic: bool,
        library: FlashInfer,
        library_first: bool,
    ) -> None:
        self._launcher, self._deterministic = launcher, deterministic
        self._library, self._library_first = library, library_first
        self._kernels = {name: self._kernel(name, module) for name, module in KERNELS.items()}
        self._kernels["paged_attention"] = Provider(
            name="triton",
            refuse=paged_attention.refuse,
            make=partial(paged_attention.make_paged_attention, sm=sm, launcher=launcher, planner=planner),
            batch_invariant=planner.tiles_only,
            graph_safe=True,
        )
        self._kernels["linear"] = Provider(
            name="triton",
            refuse=linear.refuse,
            make=partial(linear.make_linear, sm=sm, launcher=launcher),
            graph_safe=True,
        )
        self._torch = {
            "linear": Provider(name="torch", refuse=_bad_linear, make=torch_ops.make_linear, batch_invariant=False),
            "moe_experts": Provider(
                name="torch",
                refuse=_bad_dtype,
                make=partial(torch_ops.make_moe_experts, bind=bind),
                batch_invariant=deterministic,
            ),
            "moe_route": Provider(
                name="torch",
                refuse=_long_route if deterministic else _bad_dtype,
                make=partial(bind_reference, MOE_ROUTE),
                graph_safe=True,
            ),
            "paged_attention": Provider(
                name="torch", refuse=_bad_dtype, make=torch_ops.make_paged_attention, batch_invariant=False
            ),
        }

    def find(self, op: OpSpec) -> list[Provider]:
        """The providers of `op`, in order."""
        ours = [self._kernels[op.name]] if op.name in self._kernels else []
        library = self._library.find(op.name)
        kernels = [*library, *ours] if self._library_first else [*ours, *library]
        plain = Provider(
            name="torch",
            refuse=_bad_dtype,
            make=partial(bind_reference, op),
            batch_invariant=op.error.kind == "exact" or op.name in BY_ELEMENT,
            graph_safe=True,
        )
        torch = self._torch.get(op.name, plain)
        return [torch, *kernels] if op.name == "linear" and not self._deterministic else [*kernels, torch]

    def _kernel(self, name: str, module: ModuleType) -> Provider:
        make = getattr(module, f"make_{name}")
        return Provider(
            name="triton", refuse=module.refuse, make=partial(make, launcher=self._launcher), graph_safe=True
        )


def _bad_dtype(spec: Any) -> str:
    dtype = getattr(spec, "dtype", "float32")
    return "" if dtype in DTYPES else f"dtype {dtype} is not one of {', '.join(DTYPES)}"


def _long_route(spec: RouteSpec) -> str:
    if spec.num_experts <= MAX_ROUTE_EXPERTS and spec.top_k <= MAX_ROUTE_TOP_K:
        return _bad_dtype(spec)
    return f"more than {MAX_ROUTE_EXPERTS} experts or {MAX_ROUTE_TOP_K} of them are summed in an order that rows change"


def _bad_linear(spec: LinearSpec) -> str:
    return f"no {spec.quant} weights here yet" if spec.quant else _bad_dtype(spec)
