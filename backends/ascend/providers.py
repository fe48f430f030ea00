"""Which provider serves an op on Ascend, in order: a fused operator (for linear: torch's), our Triton kernel, torch.

`batch_invariant` is said of our kernels and of torch where nothing is summed: fused operators and torch's sums choose
by shape in which order. Under `--deterministic` the table refuses all others.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from isoinfer.backends.ascend import attention, moe, npu_ops
from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import Launcher
from isoinfer.backends.ops import LinearSpec, OpSpec, bind_reference
from isoinfer.backends.provider import Function, Provider
from isoinfer.backends.torch_device import torch_ops

DTYPES = ("bfloat16", "float16", "float32")
KERNELS = "isoinfer.kernels_ascend"
BY_ELEMENT = frozenset({"silu_mul", "swiglu_clipped", "rope"})
"""Ops that round and yet have no sum whose order torch could choose."""
Refuse = Callable[[Any], str]


class AscendProviders:
    """The providers of every op for one chip.

    `npu`: the fused operators. `launcher`: what builds our kernels, or the reason in words why nothing does.
    `bind` binds the parts of an op that is made of others; `deterministic`: they are all batch-invariant.
    `is_capturing`: whether a graph is being recorded.
    """

    def __init__(
        self,
        soc: Soc,
        npu: Any,
        launcher: Launcher | str,
        device: torch.device,
        *,
        bind: Callable[[OpSpec, Any], Function],
        is_capturing: Callable[[], bool],
        deterministic: bool,
    ) -> None:
        self._soc, self._npu, self._launcher = soc, npu, launcher
        self._bind, self._deterministic = bind, deterministic
        self._fused = self._fused_providers(device)
        self._torch = {
            "linear": Provider(name="torch", refuse=_bad_linear, make=torch_ops.make_linear, batch_invariant=False),
            "moe_experts": Provider(
                name="torch",
                refuse=_bad_dtype,
                make=partial(torch_ops.make_moe_experts, bind=bind),
                batch_invariant=deterministic,
                graph_safe=True,
            ),
            "paged_attention": Provider(
                name="torch",
                refuse=_bad_dtype,
                make=partial(attention.make_torch, is_capturing=is_capturing),
                batch_invariant=False,
            ),
        }

    def find(self, op: OpSpec) -> list[Provider]:
        """The providers of `op`, in order."""
        fused = [self._fused[op.name]] if op.name in self._fused else []
        module = kernel_module(op.name)
        kernel = [] if module is None else [self._kernel(op.name, module)]
        plain = Provider(
            name="torch",
            refuse=_bad_dtype,
            make=partial(bind_reference, op),
            batch_invariant=op.error.kind == "exact" or op.name in BY_ELEMENT,
            graph_safe=True,
        )
        torchs = [] if op.name in COMPOSED else [self._torch.get(op.name, plain)]
        return [*torchs, *kernel] if op.name == "linear" else [*fused, *kernel, *torchs]

    def _fused_providers(self, device: torch.device) -> dict[str, Provider]:
        mask = cache(partial(attention.causal_mask, device))
        fused_attention = partial(attention.make_fused, mask=mask, one_phase=self._soc.name == "950")
        makers: dict[str, tuple[Callable[..., Function], Refuse]] = {
            "rms_norm": (npu_ops.make_rms_norm, _bad_dtype),
            "add_rms_norm": (npu_ops.make_add_rms_norm, _bad_dtype),
            "silu_mul": (npu_ops.make_silu_mul, _bad_dtype),
            "swiglu_clipped": (npu_ops.make_swiglu_clipped, _bad_dtype),
            "rope": (npu_ops.make_rope, npu_ops.refuse_rope),
            "kv_write": (npu_ops.make_kv_write, _bad_dtype),
            "paged_attention": (fused_attention, attention.refuse_fused),
            "moe_route": (moe.make_route, moe.refuse_route),
            "moe_experts": (partial(moe.make_experts, bind=self._bind), moe.refuse_experts),
            "sample": (_never, _refuse_sample),
        }
        return {
            name: Provider(
                name="torch_npu",
                refuse=refuse,
                make=partial(make, npu=self._npu),
                batch_invariant=False,  # only at CANN's determinism level 3, which this backend does not set
                graph_safe=True,
            )
            for name, (make, refuse) in makers.items()
        }

    def _kernel(self, name: str, module: ModuleType | str) -> Provider:
        absent = next((what for what in (module, self._launcher) if isinstance(what, str)), None)
        if absent is not None:
            return Provider(name="triton", refuse=lambda spec: absent, make=_never)
        composed = name == "moe_experts"
        parts = {"bind": self._bind} if composed else {}
        return Provider(
            name="triton",
            refuse=module.refuse,  # type: ignore[union-attr]
            make=partial(getattr(module, f"make_{name}"), soc=self._soc, launcher=self._launcher, **parts),
            batch_invariant=self._deterministic or not composed,
            graph_safe=True,
        )


COMPOSED = frozenset({"rope_kv_write", "add_rms_norm"})
"""Ops whose parts are served better than their reference would be."""


@cache
def kernel_module(op: str) -> ModuleType | str | None:
    """The file of our kernel for `op`; why it cannot be loaded; None where we have none."""
    name = f"{KERNELS}.{op}"
    if find_spec(name) is None:
        return None
    if find_spec("triton") is None:
        return "triton-ascend is not installed: pip install triton-ascend"
    return importlib.import_module(name)


def _bad_dtype(spec: Any) -> str:
    dtype = getattr(spec, "dtype", "float32")
    return "" if dtype in DTYPES else f"dtype {dtype} is not one of {', '.join(DTYPES)}"


def _bad_linear(spec: LinearSpec) -> str:
    return f"no {spec.quant} weights here yet" if spec.quant else _bad_dtype(spec)


def _refuse_sample(spec: Any) -> str:
    return "npu_top_k_top_p takes k from 1 to 1024 for every row and has no min-p, so it is not the op"


def _never(*args: Any, **kwargs: Any) -> Function:
    raise AssertionError("this provider refuses every spec")
