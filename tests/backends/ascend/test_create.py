"""The assembled backend: capabilities, bad settings, and a chip that is only assumed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoinfer.backends.ascend import create as module
from isoinfer.backends.ascend.create import assume, create
from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.ops import RMS_NORM, NormSpec
from isoinfer.conformance.emulated import emulated_ascend
from isoinfer.errors import BackendError


def test_capabilities_are_those_of_the_chip() -> None:
    backend = emulated_ascend("950", BackendConfig()).backend
    capabilities = backend.capabilities
    assert capabilities.host_lengths
    assert (capabilities.kernel_block_sizes, capabilities.default_dtype) == ((128,), "bfloat16")
    assert backend.collective_backend == "hccl"
    assert backend.kv_layout([]).num_scratch_blocks == 1
    assert "32 cube and 64 vector cores" in " ".join(backend.describe())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BackendConfig(dtype="float64"), "computes in bfloat16, float16, float32, not float64"),
        (BackendConfig(deterministic=True), "served by the ascend backend's Triton kernels: kernels are not run"),
        (BackendConfig(options={"speed": "max"}), "has no options, got speed"),
    ],
    ids=["dtype", "deterministic", "option"],
)
def test_settings_that_cannot_be_honoured(config: BackendConfig, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        emulated_ascend("910B", config)


def test_an_assumed_chip_answers_and_does_not_compute() -> None:
    backend = assume(BackendConfig(assume="910C"))
    spec = NormSpec(hidden_size=64, eps=1e-6, dtype="bfloat16")
    assert backend.support(RMS_NORM, spec).provider == "torch_npu"
    norm = backend.bind(RMS_NORM, spec)
    with pytest.raises(BackendError, match="only assumed, so there is no npu_rms_norm to run"):
        norm(torch.ones(2, 64), torch.ones(64))
    with pytest.raises(BackendError, match="knows no chip '310P'"):
        assume(BackendConfig(assume="310P"))


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_deterministic_backend_says_so(deterministic: bool) -> None:
    backend = assume(BackendConfig(assume="950", deterministic=deterministic))
    assert backend.capabilities.bitwise_deterministic is deterministic
    assert any("deterministic" in line for line in backend.describe()) is deterministic


def test_an_import_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ImportError("libascendcl.so: cannot open shared object file")

    monkeypatch.setattr(module, "load_torch_npu", fail)
    with pytest.raises(BackendError, match=r"libascendcl\.so is missing; install CANN"):
        create(DeviceInfo(id="0", description="", score=0), BackendConfig())
