"""The runtime of a real device through its torch module (`torch.cuda`, `torch.npu`: both have the same names).

Errors keep the CPU runtime's contract: after a failure in launched work, later work up to the next recorded
event is skipped, and that event raises StepError. What the device itself reports is DeviceLost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from isoinfer.backends.interface import Event, Graph, MemoryInfo, Stream
from isoinfer.errors import BackendError, DeviceLost, StepError

GIB = 1 << 30
Capture = Callable[["StreamRuntime", Callable[..., None], tuple[Any, ...], frozenset[str]], Graph]


class DeviceEvent:
    """A point in a device stream. Unrecorded events count as done."""

    def __init__(self, module: Any) -> None:
        self._module, self._event = module, module.Event()
        self._error: BaseException | None = None

    def record(self, stream: Stream) -> None:
        """Mark the stream's current end and take over the failure of the work before it, if any."""
        assert isinstance(stream, DeviceStream), type(stream)
        self._error = stream.take_error()
        self._event.record(stream.raw)

    def query(self) -> bool:
        """Whether the device has reached the mark."""
        return bool(self._event.query())

    def synchronize(self) -> None:
        """Wait on the host. StepError if work before the mark failed, DeviceLost if the device did."""
        _or_lost(self._event.synchronize)
        if self._error is not None:
            raise StepError(f"{type(self._error).__name__}: {self._error}") from self._error

    @property
    def raw(self) -> Any:
        """The torch event."""
        return self._event


class DeviceStream:
    """An in-order queue of the device. `launch` runs the function now; its kernels are enqueued here."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self.raw = module, module.Stream(device)
        self._error: BaseException | None = None

    def launch(self, fn: Callable[..., None], *args: Any) -> None:
        """Enqueue, unless earlier work of this step failed."""
        if self._error is not None:
            return
        try:
            with self._module.stream(self.raw):
                fn(*args)
        except Exception as error:
            self._error = error

    def wait(self, event: Event) -> None:
        """Order later work after `event`, on the device."""
        assert isinstance(event, DeviceEvent), type(event)
        self.raw.wait_event(event.raw)

    def synchronize(self) -> None:
        """Make the host wait for all work so far."""
        _or_lost(self.raw.synchronize)

    def take_error(self) -> BaseException | None:
        """The failure since the last mark; the next step starts clean."""
        error, self._error = self._error, None
        return error


class StreamRuntime:
    """One device. `capture` records graphs in the vendor's way."""

    def __init__(self, module: Any, device: torch.device, capture: Capture) -> None:
        self._module, self.device, self._capture = module, device, capture
        module.set_device(device)

    @property
    def module(self) -> Any:
        """The torch module of the device."""
        return self._module

    def stream(self) -> DeviceStream:
        """A new stream."""
        return DeviceStream(self._module, self.device)

    def event(self) -> DeviceEvent:
        """An unrecorded event."""
        return DeviceEvent(self._module)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Device memory with undefined contents. BackendError with the sizes where it does not fit."""
        try:
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)
        except torch.OutOfMemoryError as error:
            free, total = self._module.mem_get_info(self.device)
            asked = torch.Size(shape).numel() * dtype.itemsize
            raise BackendError(
                f"{self.device} is out of memory: {asked / GIB:.2f} GiB more were asked for, {free / GIB:.2f} of "
                f"{total / GIB:.2f} GiB are free; use a smaller model, dtype, --kv-memory or --max-model-len"
            ) from error

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Pinned memory, from torch's own cache of it."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def memory(self) -> MemoryInfo:
        """KV gets nine tenths of what is free unless told otherwise: activations need the rest."""
        free, total = self._module.mem_get_info(self.device)
        return MemoryInfo(total=total, free=free, kv_default=free * 9 // 10)

    def capture(self, fn: Callable[..., None], *args: Any, host_params: Sequence[str] = ()) -> Graph:
        """Record device work as the vendor does."""
        return self._capture(self, fn, args, frozenset(host_params))


def _or_lost(wait: Callable[[], None]) -> None:
    """Wait; an error of the device itself, which torch raises as RuntimeError, means that it is gone."""
    try:
        wait()
    except RuntimeError as error:
        raise DeviceLost(f"the device reported an error and cannot be used any more: {error}") from error
