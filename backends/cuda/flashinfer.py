"""Ops served by the flashinfer library, where it is installed and a function of its documented interface is the op.

Whether it serves an op is told from what is installed, without importing it. It is imported when an op is bound to
it: that is where our kernel refused or could not be built, or where the user asked for the library first. The real
functions are looked up then, and called once, since the library builds its kernels on first use.

Suffixes: T tokens, H hidden size, I intermediate size.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import torch

from isoinfer.backends.ops import ActivationSpec, NormSpec, torch_dtype
from isoinfer.backends.provider import Function, KernelError, Provider

DISTRIBUTION = "flashinfer-python"
OLDEST = (0, 2)
DTYPES = ("bfloat16", "float16")
ALIGNMENT = 16
"""Bytes that rows of the activation are a multiple of."""
NO_ATTENTION = (
    "its attention wrappers plan each batch on the host from exact KV lengths, and here these may be on the device only"
)


class FlashInfer:
    """The library as a provider. `device`: where functions are tried; on "meta" they are not, since nothing runs.

    `find`, `version` and `load` are the doors to what is installed; tests pass their own.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        find: Callable[[str], object | None] = find_spec,
        version: Callable[[str], str] = metadata.version,
        load: Callable[[str], Any] = import_module,
    ) -> None:
        self._device, self._load = device, load
        self._version, self._absence = _installed(find, version)
        self._providers = {
            "rms_norm": _provider(self._unless_absent(_refuse_dtype), self._make_rms_norm),
            "add_rms_norm": _provider(self._unless_absent(_refuse_dtype), self._make_add_rms_norm),
            "silu_mul": _provider(self._unless_absent(_refuse_silu_mul), self._make_silu_mul),
            "paged_attention": _provider(lambda spec: NO_ATTENTION, _never),
        }

    def find(self, op: str) -> list[Provider]:
        """The provider of `op`, if the library has a function to think of."""
        return [self._providers[op]] if op in self._providers else []

    def _unless_absent(self, refuse: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda spec: self._absence or refuse(spec)

    def _make_rms_norm(self, spec: NormSpec) -> Function:
        fn = partial(rms_norm, self._function("norm", "rmsnorm"), spec.eps)
        self._try_out(fn, spec.dtype, (1, spec.hidden_size), (spec.hidden_size,))
        return fn

    def _make_add_rms_norm(self, spec: NormSpec) -> Function:
        fn = partial(add_rms_norm, self._function("norm", "fused_add_rmsnorm"), spec.eps)
        self._try_out(fn, spec.dtype, (1, spec.hidden_size), (1, spec.hidden_size), (spec.hidden_size,))
        return fn

    def _make_silu_mul(self, spec: ActivationSpec) -> Function:
        fn = partial(silu_mul, self._function("activation", "silu_and_mul"))
        self._try_out(fn, spec.dtype, (1, 2 * spec.intermediate_size))
        return fn

    def _function(self, module: str, name: str) -> Function:
        """The library's function. KernelError in words where it cannot be had."""
        try:
            function = getattr(self._load(f"flashinfer.{module}"), name, None)
        except Exception as error:  # an import runs the library's own checks of CUDA and of its parts
            raise KernelError(f"flashinfer {self._version} cannot be imported: {_first_line(error)}") from error
        if not callable(function):
            raise KernelError(f"flashinfer {self._version} has no function {module}.{name}")
        return function  # type: ignore[no-any-return]

    def _try_out(self, fn: Function, dtype: str, *shapes: tuple[int, ...]) -> None:
        """Call it on zeros, so that what cannot be built here is known when the op is bound. KernelError then."""
        if self._device.type == "meta":
            return
        try:
            fn(*(torch.zeros(shape, dtype=torch_dtype(dtype), device=self._device) for shape in shapes))
        except Exception as error:  # a compiler is started, which fails in its own ways
            raise KernelError(f"flashinfer {self._version} does not run here: {_first_line(error)}") from error


def rms_norm(library: Function, eps: float, x_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
    """rms_norm(x_TH, weight_H) -> out_TH, by `norm.rmsnorm`."""
    if not x_TH.shape[0]:
        return torch.empty_like(x_TH)
    out_TH: torch.Tensor = library(x_TH.contiguous(), weight_H, eps)
    return out_TH


def add_rms_norm(
    library: Function, eps: float, x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor
) -> torch.Tensor:
    """add_rms_norm(x_TH, residual_TH, weight_H) -> normed_TH, by `norm.fused_add_rmsnorm`.

    It writes the norm over its input, which the op may not change: it gets a copy.
    """
    normed_TH = x_TH.clone(memory_format=torch.contiguous_format)
    if x_TH.shape[0]:
        sum_TH = residual_TH.contiguous()
        library(normed_TH, sum_TH, weight_H, eps)
        if sum_TH is not residual_TH:
            residual_TH.copy_(sum_TH)
    return normed_TH


def silu_mul(library: Function, x_T2I: torch.Tensor) -> torch.Tensor:
    """silu_mul(x_T2I) -> out_TI, by `activation.silu_and_mul`."""
    if not x_T2I.shape[0]:
        return x_T2I.new_empty((0, x_T2I.shape[1] // 2))
    out_TI: torch.Tensor = library(x_T2I.contiguous())
    return out_TI


def _provider(refuse: Callable[[Any], str], make: Callable[[Any], Function]) -> Provider:
    # no promise of batch invariance in its documentation
    return Provider(name="flashinfer", refuse=refuse, make=make, batch_invariant=False, graph_safe=True)


def _installed(find: Callable[[str], object | None], version: Callable[[str], str]) -> tuple[str, str]:
    """The version that is installed, and why it is not used, or ""."""
    if find("flashinfer") is None:
        return "", f"flashinfer is not installed: pip install {DISTRIBUTION}"
    try:
        found = version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "", f"there is a module flashinfer, but no package {DISTRIBUTION}: pip install {DISTRIBUTION}"
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or tuple(map(int, numbers.groups())) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return found, f"flashinfer {found} is older than {oldest}: pip install -U {DISTRIBUTION}"
    return found, ""


def _refuse_dtype(spec: Any) -> str:
    return "" if spec.dtype in DTYPES else f"it is asked for {' and '.join(DTYPES)}, not for {spec.dtype}"


def _refuse_silu_mul(spec: ActivationSpec) -> str:
    if reason := _refuse_dtype(spec):
        return reason
    width = spec.intermediate_size * torch_dtype(spec.dtype).itemsize
    return f"a row of {width} bytes is not a multiple of {ALIGNMENT}" if width % ALIGNMENT else ""


def _never(spec: Any) -> Function:
    raise AssertionError("this provider refuses every spec")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
