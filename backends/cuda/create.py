"""Assembles the CUDA backend from its parts: on a GPU, or on host memory for a chip that is only assumed."""

from __future__ import annotations

from typing import Any

import torch

from isoinfer.backends.cuda.capability import SmCapability, assumed, capability_of
from isoinfer.backends.cuda.flashinfer import FlashInfer
from isoinfer.backends.cuda.graph import GraphCapture
from isoinfer.backends.cuda.providers import DTYPES, CudaProviders
from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.interface import Capabilities
from isoinfer.backends.kernel_case import Launcher, NoLauncher
from isoinfer.backends.ops import OpSpec
from isoinfer.backends.provider import Function, ProviderTable
from isoinfer.backends.torch_device.backend import TorchDeviceBackend
from isoinfer.backends.torch_device.kv import PagedKVStore
from isoinfer.backends.torch_device.runtime import DeviceRuntime, HostRuntime
from isoinfer.backends.torch_device.stream_runtime import StreamRuntime
from isoinfer.backends.torch_device.triton_launcher import TritonLauncher
from isoinfer.errors import BackendError
from isoinfer.kernels_cuda.attention_plan import AttentionPlanner

BLOCK_SIZE = 64
GRAPH_LIMIT = 64
OPTIONS = {"flashinfer": ("after", "before")}
"""Where it is asked, seen from our kernels; the first value is the default."""


def create(device: DeviceInfo, config: BackendConfig) -> TorchDeviceBackend:
    """The backend on GPU `device.id`."""
    index = int(device.id)
    chip = capability_of(*torch.cuda.get_device_capability(index))
    runtime = StreamRuntime(torch.cuda, torch.device("cuda", index), GraphCapture())
    return assemble(device, config, chip, runtime, TritonLauncher())


def assume(config: BackendConfig) -> TorchDeviceBackend:
    """What the backend would be on the chip that `config.assume` names. It answers; it cannot compute."""
    assert config.assume is not None
    chip = assumed(config.assume)
    device = DeviceInfo(id=chip.label, description=f"{chip.name}, assumed: nothing runs", score=0)
    return assemble(device, config, chip, HostRuntime(torch.device("meta")), NoLauncher())


def assemble(
    device: DeviceInfo, config: BackendConfig, chip: SmCapability, runtime: DeviceRuntime, launcher: Launcher
) -> TorchDeviceBackend:
    """The same parts on any runtime: a GPU's, or the host's where kernels are interpreted."""
    _check(config)
    deterministic = config.deterministic
    planner = AttentionPlanner(runtime.empty, runtime.host_buffer, tiles_only=deterministic)

    def bind(op: OpSpec, static: Any) -> Function:
        return table.bind(op, static)

    providers = CudaProviders(
        chip.sm,
        launcher,
        planner,
        bind,
        deterministic=deterministic,
        library=FlashInfer(runtime.device),
        library_first=config.options.get("flashinfer") == "before",
    )
    table = ProviderTable(
        "cuda",
        providers.find,
        # every op has torch's form, so what is composed is what batch invariance has refused
        fallback="fail" if deterministic else config.fallback,
        batch_invariant=deterministic,
    )
    return TorchDeviceBackend(
        name="cuda",
        info=device,
        capabilities=_capabilities(config),
        collective_backend="nccl",
        runtime=runtime,
        table=table,
        kv_store=PagedKVStore(device=runtime.device, block_size=BLOCK_SIZE, num_scratch_blocks=1),
        plan=planner.plan,
        lines=(
            f"cuda: {device.description}",
            f"cuda: {chip.label} kernels, " + ("all of them, deterministic" if deterministic else "linear by torch"),
        ),
    )


def _capabilities(config: BackendConfig) -> Capabilities:
    return Capabilities(
        dtypes=DTYPES,
        default_dtype="bfloat16" if config.dtype == "auto" else config.dtype,
        kernel_block_sizes=(BLOCK_SIZE,),
        max_in_flight=2,
        overlap_pays=True,
        graph_limit=GRAPH_LIMIT,
        bitwise_deterministic=config.deterministic,
    )


def _check(config: BackendConfig) -> None:
    if config.dtype not in ("auto", *DTYPES):
        raise BackendError(f"the cuda backend computes in {', '.join(DTYPES)}, not {config.dtype}")
    for name, value in config.options.items():
        if value not in OPTIONS.get(name, ()):
            known = "; ".join(f"{key}={'|'.join(values)}" for key, values in OPTIONS.items())
            raise BackendError(f"the cuda backend has no option {name}={value}; it has {known}")
