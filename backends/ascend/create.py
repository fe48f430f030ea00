"""Assembles the Ascend backend from its parts: on an NPU, over an emulation, or for a chip that is only assumed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from isoinfer.backends.ascend.graph import GraphCapture
from isoinfer.backends.ascend.plan import AttentionPlanner
from isoinfer.backends.ascend.probe import load_failure, load_torch_npu
from isoinfer.backends.ascend.providers import DTYPES, AscendProviders
from isoinfer.backends.ascend.soc import Soc, assumed, refusal, soc_of
from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.interface import Capabilities
from isoinfer.backends.kernel_case import Launcher, NoLauncher
from isoinfer.backends.ops import OpSpec
from isoinfer.backends.provider import Function, ProviderTable
from isoinfer.backends.torch_device.backend import TorchDeviceBackend
from isoinfer.backends.torch_device.kv import PagedKVStore
from isoinfer.backends.torch_device.runtime import DeviceRuntime, HostRuntime
from isoinfer.backends.torch_device.stream_runtime import StreamRuntime
from isoinfer.errors import BackendError

BLOCK_SIZE = 128
NO_TRITON = "triton-ascend is not installed: pip install triton-ascend"


def create(device: DeviceInfo, config: BackendConfig) -> TorchDeviceBackend:
    """The backend on NPU `device.id`. BackendError, one line, where torch_npu or the chip is not what it must be."""
    try:
        npu = load_torch_npu().npu
    except Exception as error:
        raise BackendError(load_failure(error)) from error
    index = int(device.id)
    soc = _soc(npu, index)
    capture = GraphCapture(npu, soc.graph_limit)
    runtime = StreamRuntime(npu, torch.device("npu", index), capture)
    return assemble(device, config, soc, runtime, torch.ops.npu, _launcher(), capture.is_capturing)


def _soc(npu: Any, index: int) -> Soc:
    number, name = npu.get_soc_version(), npu.get_device_name(index)
    if reason := refusal(number, name):
        raise BackendError(reason)
    properties = npu.get_device_properties(index)
    cores = getattr(properties, "cube_core_num", 0), getattr(properties, "vector_core_num", 0)
    return soc_of(number, cores if all(cores) else None)


def _launcher() -> Launcher | str:
    if find_spec("triton") is None:
        return NO_TRITON
    from isoinfer.backends.torch_device.triton_launcher import TritonLauncher

    return TritonLauncher()


def assume(config: BackendConfig) -> TorchDeviceBackend:
    """What the backend would be on the chip that `config.assume` names. It answers; it cannot compute."""
    assert config.assume is not None
    soc = assumed(config.assume)
    device = DeviceInfo(
        id=soc.name, description=f"Ascend {soc.name} ({soc.description}), assumed: nothing runs", score=0
    )
    runtime = HostRuntime(torch.device("meta"))
    return assemble(device, config, soc, runtime, _NoOperators(), NoLauncher(), _is_never_capturing)


class _NoOperators:
    """Operators of a chip that is not there."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise BackendError(f"this chip is only assumed, so there is no {name} to run")


def _is_never_capturing() -> bool:
    return False


def assemble(
    device: DeviceInfo,
    config: BackendConfig,
    soc: Soc,
    runtime: DeviceRuntime,
    npu: Any,
    launcher: Launcher | str,
    is_capturing: Callable[[], bool],
) -> TorchDeviceBackend:
    """The same parts on any runtime. `npu`: the fused operators. `launcher`: or the reason why there is none."""
    _check(config, launcher)

    def bind(op: OpSpec, static: Any) -> Function:
        return table.bind(op, static)

    providers = AscendProviders(
        soc,
        npu,
        launcher,
        runtime.device,
        bind=bind,
        is_capturing=is_capturing,
        deterministic=config.deterministic,
    )
    # a decomposition sums as torch does
    fallback = "fail" if config.deterministic else config.fallback
    table = ProviderTable("ascend", providers.find, fallback=fallback, batch_invariant=config.deterministic)
    kernels = f"no Triton kernels ({launcher})" if isinstance(launcher, str) else "Triton kernels"
    kernels += ", deterministic" if config.deterministic else ""
    return TorchDeviceBackend(
        name="ascend",
        info=device,
        capabilities=_capabilities(config, soc),
        collective_backend="hccl",
        runtime=runtime,
        table=table,
        kv_store=PagedKVStore(device=runtime.device, block_size=BLOCK_SIZE, num_scratch_blocks=1),
        plan=AttentionPlanner(empty=runtime.empty, host_buffer=runtime.host_buffer).plan,
        lines=(
            f"ascend: {device.description}",
            f"ascend: {soc.name}, {soc.cube_cores} cube and {soc.vector_cores} vector cores, {kernels}",
        ),
    )


def _capabilities(config: BackendConfig, soc: Soc) -> Capabilities:
    return Capabilities(
        dtypes=DTYPES,
        default_dtype="bfloat16" if config.dtype == "auto" else config.dtype,
        kernel_block_sizes=(BLOCK_SIZE,),
        host_lengths=True,
        max_in_flight=2,
        overlap_pays=True,
        graph_limit=soc.graph_limit,
        bitwise_deterministic=config.deterministic,
    )


def _check(config: BackendConfig, launcher: Launcher | str) -> None:
    if config.dtype not in ("auto", *DTYPES):
        raise BackendError(f"the ascend backend computes in {', '.join(DTYPES)}, not {config.dtype}")
    if config.options:
        raise BackendError(f"the ascend backend has no options, got {', '.join(sorted(config.options))}")
    if config.deterministic and isinstance(launcher, str):
        raise BackendError(f"--deterministic is served by the ascend backend's Triton kernels: {launcher}")
