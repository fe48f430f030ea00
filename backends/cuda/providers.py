"""Which provider serves an op on CUDA, in order: our Triton kernel, a library that is installed, torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from isoinfer.backends.kernel_case import Launcher
from isoinfer.backends.ops import LinearSpec, OpSpec, bind_reference
from isoinfer.backends.provider import Function, Provider
from isoinfer.backends.torch_device import torch_ops
from isoinfer.kernels_cuda import (
    add_rms_norm,
    argmax,
    bias_logits,
    embedding,
    gather_rows,
    logprobs,
    mask_logits,
    paged_attention,
    penalize,
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
}
"""Ops whose kernel needs nothing but its spec and a launcher."""


class CudaProviders:
    """The providers of every op for one architecture. `bind` binds the parts of an op that is made of others."""

    def __init__(
        self, sm: int, launcher: Launcher, planner: AttentionPlanner, bind: Callable[[OpSpec, Any], Function]
    ) -> None:
        self._launcher = launcher
        self._kernels = {name: self._kernel(name, module) for name, module in KERNELS.items()}
        self._kernels["paged_attention"] = Provider(
            name="triton",
            refuse=paged_attention.refuse,
            make=partial(paged_attention.make_paged_attention, sm=sm, launcher=launcher, planner=planner),
            graph_safe=True,
        )
        self._torch = {
            "linear": Provider(name="torch", refuse=_bad_linear, make=torch_ops.make_linear, batch_invariant=False),
            "moe_experts": Provider(
                name="torch",
                refuse=_bad_dtype,
                make=partial(torch_ops.make_moe_experts, bind=bind),
                batch_invariant=False,
            ),
            "paged_attention": Provider(name="torch", refuse=_bad_dtype, make=torch_ops.make_paged_attention),
        }

    def find(self, op: OpSpec) -> list[Provider]:
        """The providers of `op`, in order."""
        found = [self._kernels[op.name]] if op.name in self._kernels else []
        plain = Provider(name="torch", refuse=_bad_dtype, make=partial(bind_reference, op), graph_safe=True)
        return [*found, self._torch.get(op.name, plain)]

    def _kernel(self, name: str, module: ModuleType) -> Provider:
        make = getattr(module, f"make_{name}")
        return Provider(
            name="triton", refuse=module.refuse, make=partial(make, launcher=self._launcher), graph_safe=True
        )


def _bad_dtype(spec: Any) -> str:
    dtype = getattr(spec, "dtype", "float32")
    return "" if dtype in DTYPES else f"dtype {dtype} is not one of {', '.join(DTYPES)}"


def _bad_linear(spec: LinearSpec) -> str:
    return f"no {spec.quant} weights here yet" if spec.quant else _bad_dtype(spec)
