"""flashinfer as a provider, over an emulation: a module with its documented functions, computed by torch.

The emulation raises on whatever the documentation does not offer: other dtypes, shapes, views. It shows that our calls
are right, not that the library is there or how fast it is. Evidence: emulated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isoinfer.backends.cuda.capability import assumed
from isoinfer.backends.cuda.create import assemble, assume
from isoinfer.backends.cuda.flashinfer import FlashInfer
from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.evidence import check_claims
from isoinfer.backends.interface import Capabilities
from isoinfer.backends.kernel_case import KernelCase, Launch
from isoinfer.backends.ops import (
    ADD_RMS_NORM,
    ALL_OPS,
    PAGED_ATTENTION,
    RMS_NORM,
    SILU_MUL,
    ActivationSpec,
    NormSpec,
    bind_reference,
)
from isoinfer.backends.provider import KernelError, ProviderTable
from isoinfer.backends.torch_device.backend import TorchDeviceBackend
from isoinfer.backends.torch_device.kv import PagedKVStore
from isoinfer.backends.torch_device.runtime import HostRuntime
from isoinfer.conformance.op_cases import run_op_cases

CPU = torch.device("cpu")
OPS = (RMS_NORM, ADD_RMS_NORM, SILU_MUL)
NORM = NormSpec(hidden_size=64, eps=1e-5, dtype="bfloat16")


class Unsupported(AssertionError):
    """A call that the documentation does not offer."""


def require(condition: bool, what: str) -> None:
    """Like an assertion that tests of ours cannot mistake for theirs."""
    if not condition:
        raise Unsupported(what)


def require_input(tensor: torch.Tensor, *dims: int) -> None:
    """What every tensor that is passed must be."""
    require(tensor.dtype in (torch.bfloat16, torch.float16), f"{tensor.dtype} is not a 16-bit float")
    require(tensor.dim() in dims, f"{tensor.dim()} dimensions instead of {dims}")
    require(tensor.is_contiguous(), "a view that is not contiguous")
    require(tensor.numel() > 0, "an empty batch")
    require(tensor.data_ptr() % 16 == 0, "a pointer that is not a multiple of 16 bytes")


class EmulatedFlashInfer:
    """The functions, by their documentation: https://docs.flashinfer.ai. `calls` notes who was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.imports: list[str] = []

    def load(self, name: str) -> Any:
        """What import_module gives."""
        self.imports.append(name)
        return {
            "flashinfer.norm": SimpleNamespace(rmsnorm=self.rmsnorm, fused_add_rmsnorm=self.fused_add_rmsnorm),
            "flashinfer.activation": SimpleNamespace(silu_and_mul=self.silu_and_mul),
        }[name]

    def rmsnorm(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        eps: float = 1e-6,
        out: torch.Tensor | None = None,
        enable_pdl: bool | None = None,
    ) -> torch.Tensor:
        """Returns the norm; leaves the input alone."""
        self.calls.append("rmsnorm")
        require_input(input, 2, 3)
        self._require_weight(input, weight)
        require(isinstance(eps, float), f"eps is {eps!r}")
        require(out is None or out.shape == input.shape, "an output of another shape")
        return bind_reference(RMS_NORM, NormSpec(hidden_size=input.shape[-1], eps=eps, dtype=""))(input, weight)

    def fused_add_rmsnorm(
        self,
        input: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float = 1e-6,
        enable_pdl: bool | None = None,
    ) -> None:
        """The sum into the residual, its norm into the input. The norm may be of the sum before it is rounded."""
        self.calls.append("fused_add_rmsnorm")
        for tensor in (input, residual):
            require_input(tensor, 2)
            require(tensor.shape == input.shape and tensor.dtype == input.dtype, "unlike input and residual")
        self._require_weight(input, weight)
        require(input.data_ptr() != residual.data_ptr(), "input and residual are one tensor")
        wide = input.float() + residual.float()
        residual.copy_(wide)
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        input.copy_(wide * rstd * weight.float())

    def silu_and_mul(
        self, input: torch.Tensor, out: torch.Tensor | None = None, enable_pdl: bool | None = None
    ) -> torch.Tensor:
        """silu of the first half times the second."""
        self.calls.append("silu_and_mul")
        require_input(input, 2, 3)
        require(input.shape[-1] * input.element_size() % 32 == 0, "halves that are not a multiple of 16 bytes")
        static = ActivationSpec(intermediate_size=input.shape[-1] // 2, dtype="")
        return bind_reference(SILU_MUL, static)(input)

    def _require_weight(self, input: torch.Tensor, weight: torch.Tensor) -> None:
        require_input(weight, 1)
        require(weight.shape[0] == input.shape[-1] and weight.dtype == input.dtype, "unlike input and weight")


def library(emulated: EmulatedFlashInfer, device: torch.device = CPU, **doors: Any) -> FlashInfer:
    """The provider over the emulation."""
    defaults = {"find": lambda name: emulated, "version": lambda name: "0.7.2.post1", "load": emulated.load}
    return FlashInfer(device, **(defaults | doors))


def alone(flashinfer: FlashInfer) -> TorchDeviceBackend:
    """A backend that has nothing else."""
    runtime = HostRuntime()
    return TorchDeviceBackend(
        name="cuda",
        info=DeviceInfo(id="0", description="emulated", score=0),
        capabilities=Capabilities(dtypes=("bfloat16", "float16", "float32"), default_dtype="bfloat16"),
        collective_backend="gloo",
        runtime=runtime,
        table=ProviderTable("cuda", lambda op: flashinfer.find(op.name), fallback="fail"),
        kv_store=PagedKVStore(device=runtime.device, block_size=64),
        plan=lambda batch, stream: pytest.fail("no attention is served"),
        lines=(),
    )


def test_the_ops_cases_pass_and_what_is_refused_says_why() -> None:
    emulated = EmulatedFlashInfer()
    backend = alone(library(emulated))
    results = [result for seed in range(5) for result in run_op_cases(backend, OPS, seed=seed)]
    assert [f"{r.id}: {r.reason}" for r in results if r.status == "failed"] == []
    refused = {(r.op, r.reason) for r in results if r.status == "unsupported"}
    assert refused == {
        *((op.name, "flashinfer: it is asked for bfloat16 and float16, not for float32") for op in OPS),
        ("silu_mul", "flashinfer: a row of 74 bytes is not a multiple of 16"),
    }
    assert set(emulated.calls) == {"rmsnorm", "fused_add_rmsnorm", "silu_and_mul"}
    check_claims("cuda", "emulated", {(r.op, r.provider) for r in results if r.status == "passed"})


def test_views_and_empty_batches_are_served() -> None:
    backend = alone(library(EmulatedFlashInfer()))
    wide = torch.randn(6, 4 * 64).to(torch.bfloat16)
    weight = torch.randn(64).to(torch.bfloat16)
    norm, reference = backend.bind(RMS_NORM, NORM), bind_reference(RMS_NORM, NORM)
    torch.testing.assert_close(norm(wide[:, 64:128], weight), reference(wide[:, 64:128], weight), rtol=0, atol=0)
    assert norm(wide[:0, :64], weight).shape == (0, 64)
    add = backend.bind(ADD_RMS_NORM, NORM)
    residual, before = wide[:, :64], wide.clone()
    add(wide[:, 64:128], residual, weight)
    torch.testing.assert_close(residual, before[:, :64] + before[:, 64:128], rtol=0, atol=0)
    assert torch.equal(wide[:, 64:], before[:, 64:])
    assert add(wide[:0, 64:128], wide[:0, :64], weight).shape == (0, 64)
    silu = backend.bind(SILU_MUL, ActivationSpec(intermediate_size=64, dtype="bfloat16"))
    assert silu(wide[:, :128]).shape == (6, 64)
    assert silu(wide[:0, :128]).shape == (0, 64)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda f, x, w: f.rmsnorm(x.float(), w), "not a 16-bit float"),
        (lambda f, x, w: f.rmsnorm(x[:, :32], w[:32]), "not contiguous"),
        (lambda f, x, w: f.rmsnorm(x, w.half()), "unlike input and weight"),
        (lambda f, x, w: f.rmsnorm(x[:0], w), "an empty batch"),
        (lambda f, x, w: f.rmsnorm(x, w, 1), "eps is 1"),
        (lambda f, x, w: f.fused_add_rmsnorm(x, x, w), "are one tensor"),
        (lambda f, x, w: f.fused_add_rmsnorm(x, x[:2].clone(), w), "unlike input and residual"),
        (lambda f, x, w: f.silu_and_mul(x[:, :8].contiguous()), "not a multiple of 16 bytes"),
    ],
)
def test_the_emulation_refuses_what_is_not_offered(call: Callable[..., Any], what: str) -> None:
    x, weight = torch.ones(4, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    with pytest.raises(Unsupported, match=what):
        call(EmulatedFlashInfer(), x, weight)


def no_package(name: str) -> str:
    raise PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("doors", "reason"),
    [
        ({"find": lambda name: None}, "flashinfer is not installed: pip install flashinfer-python"),
        ({"version": no_package}, "there is a module flashinfer, but no package flashinfer-python"),
        ({"version": lambda name: "0.1.6+cu124"}, "flashinfer 0.1.6.* is older than 0.2: pip install -U"),
        ({"version": lambda name: "unknown"}, "flashinfer unknown is older than 0.2"),
    ],
)
def test_what_is_not_there_is_said_without_an_import(doors: dict[str, Any], reason: str) -> None:
    emulated = EmulatedFlashInfer()
    support = alone(library(emulated, **doors)).support(RMS_NORM, NORM)
    assert support.status == "unsupported"
    assert re.search(reason, support.reason), support.reason
    assert emulated.imports == []


def test_an_answer_imports_nothing_and_bind_imports_one_module() -> None:
    emulated = EmulatedFlashInfer()
    backend = alone(library(emulated))
    assert backend.support(RMS_NORM, NORM).provider == "flashinfer"
    assert emulated.imports == []
    backend.bind(RMS_NORM, NORM)
    assert emulated.imports == ["flashinfer.norm"]
    assert emulated.calls == ["rmsnorm"], "tried once"
    library(emulated, device=torch.device("meta")).find("rms_norm")[0].make(NORM)
    assert emulated.calls == ["rmsnorm"], "not on a chip that is only assumed"


def broken_import(name: str) -> Any:
    raise RuntimeError("libcudart is not found\nand more")


def broken_call(*args: Any) -> Any:
    raise RuntimeError("ninja: error: nvcc failed\nand more")


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (broken_import, "cannot be imported: RuntimeError: libcudart is not found$"),
        (lambda name: SimpleNamespace(), "has no function norm.rmsnorm$"),
        (
            lambda name: SimpleNamespace(rmsnorm=broken_call),
            "does not run here: RuntimeError: ninja: error: nvcc failed$",
        ),
    ],
)
def test_what_is_installed_and_does_not_work_is_passed_over_loudly(load: Any, reason: str) -> None:
    broken = library(EmulatedFlashInfer(), load=load)
    with pytest.raises(KernelError, match=f"flashinfer 0.7.2.post1 {reason}"):
        broken.find("rms_norm")[0].make(NORM)


class FailingLauncher:
    """No kernel can be built."""

    def prepare(self, case: KernelCase) -> Launch:
        raise KernelError("no compiler")


def cuda(options: dict[str, str], launcher: Any, monkeypatch: pytest.MonkeyPatch, emulated: Any) -> TorchDeviceBackend:
    """The CUDA backend as it is assembled, on host memory, over the emulation."""
    monkeypatch.setattr("isoinfer.backends.cuda.create.FlashInfer", lambda device: library(emulated))
    device = DeviceInfo(id="0", description="emulated", score=0)
    return assemble(device, BackendConfig(options=options), assumed("sm_90"), HostRuntime(), launcher)


def test_it_is_asked_after_our_kernels_and_before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated = EmulatedFlashInfer()
    backend = cuda({}, FailingLauncher(), monkeypatch, emulated)
    assert [a.provider for a in backend.supports(RMS_NORM, NORM)] == ["triton", "flashinfer", "torch"]
    with pytest.warns(UserWarning, match="triton rms_norm cannot be built"):
        norm = backend.bind(RMS_NORM, NORM)
    emulated.calls.clear()
    norm(torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16))
    assert emulated.calls == ["rmsnorm"]


def test_the_user_may_ask_for_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = cuda({"flashinfer": "before"}, FailingLauncher(), monkeypatch, EmulatedFlashInfer())
    assert [a.provider for a in backend.supports(SILU_MUL, ActivationSpec(intermediate_size=64, dtype="float16"))] == [
        "flashinfer",
        "triton",
        "torch",
    ]
    assert backend.bind(RMS_NORM, NORM) is not None


def test_attention_is_refused_in_words_whatever_is_installed() -> None:
    backend = assume(BackendConfig(assume="sm_100"))
    static = next(iter(PAGED_ATTENTION.samples(torch.bfloat16, 0))).static
    reasons = {answer.provider: answer.reason for answer in backend.supports(PAGED_ATTENTION, static)}
    assert "plan each batch on the host" in reasons["flashinfer"]
    others = {op.name for op in ALL_OPS.values() if library(EmulatedFlashInfer()).find(op.name)}
    assert others == {"rms_norm", "add_rms_norm", "silu_mul", "paged_attention"}


def test_a_package_on_the_disk_is_seen_and_imported_only_when_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real doors: it says its version, and its import tells on itself."""
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer/__init__.py").write_text("raise ImportError('no CUDA here')")
    (tmp_path / "flashinfer_python-0.6.1.dist-info").mkdir()
    (tmp_path / "flashinfer_python-0.6.1.dist-info/METADATA").write_text("Name: flashinfer-python\nVersion: 0.6.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    provider = FlashInfer(CPU).find("rms_norm")[0]
    assert provider.refuse(NORM) == ""
    with pytest.raises(KernelError, match=r"flashinfer 0\.6\.1 cannot be imported: ImportError: no CUDA here"):
        provider.make(NORM)
