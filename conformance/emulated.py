"""The Ascend backend over emulated operators: the real providers, plans and graphs, on host memory."""

from __future__ import annotations

from dataclasses import dataclass

from isoinfer.backends.ascend.create import assemble
from isoinfer.backends.ascend.graph import GraphCapture
from isoinfer.backends.ascend.soc import assumed
from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.torch_device.backend import TorchDeviceBackend
from isoinfer.backends.torch_device.runtime import HostRuntime
from isoinfer.conformance.npu_emulation import EmulatedNpu
from isoinfer.conformance.npu_emulation_graph import EmulatedModule, Recorder

NO_KERNELS = "kernels are not run in the emulation of the fused operators"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedAscend:
    """A backend and the operators behind it, whose calls are counted."""

    backend: TorchDeviceBackend
    npu: EmulatedNpu


def emulated_ascend(chip: str, config: BackendConfig, *, graph_capacity: int = 1 << 16) -> EmulatedAscend:
    """The backend as it is assembled for `chip` ("910B"). `graph_capacity`: captures its streams suffice for."""
    soc, recorder = assumed(chip), Recorder()
    npu = EmulatedNpu(soc, recorder)
    capture = GraphCapture(EmulatedModule(recorder, graph_capacity), soc.graph_limit)
    device = DeviceInfo(id="0", description=f"Ascend {soc.name}, emulated", score=0)
    runtime = HostRuntime(capture=capture)
    backend = assemble(device, config, soc, runtime, npu, NO_KERNELS, capture.is_capturing)
    return EmulatedAscend(backend=backend, npu=npu)
