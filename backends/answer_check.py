"""Whether what a plugin's hooks returned is what the seam promises. Raises TypeError that says what to return.

The registry trusts nothing here, since the plugin was written elsewhere and perhaps for another version.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from isoinfer.backends.descriptor import BACKEND_API, BackendDescriptor, Claims, DeviceInfo

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_RESERVED = ("auto",)


def normal_name(distribution: str) -> str:
    """A distribution's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def check_descriptor(value: object, *, name: str, distribution: str) -> BackendDescriptor:
    """The descriptor of the plugin behind entry point `name` of `distribution`. Raises TypeError."""
    descriptor = _expect(value, BackendDescriptor, "isoinfer_backend_descriptor")
    problems = list(_descriptor_problems(descriptor, name, distribution))
    if problems:
        raise TypeError("isoinfer_backend_descriptor: " + "; ".join(problems))
    return descriptor


def check_devices(value: object) -> tuple[DeviceInfo, ...]:
    """The probed devices. Raises TypeError; an empty list is one, because it gives the user no reason."""
    hook = "isoinfer_backend_probe"
    devices = tuple(_expect(device, DeviceInfo, f"{hook} (an item)") for device in _expect(value, list, hook))
    if not devices:
        raise TypeError(f"{hook} returned no device: return one DeviceInfo whose `reason` says why there is none")
    problems = [problem for device in devices for problem in _device_problems(device)]
    ids = [device.id for device in devices]
    problems += [f"device id {id!r} occurs twice" for id in sorted({str(i) for i in ids if ids.count(i) > 1})]
    if problems:
        raise TypeError(f"{hook}: " + "; ".join(problems))
    return devices


def check_claims(value: object) -> Claims:
    """The claims. Raises TypeError."""
    return _expect(value, Claims, "isoinfer_backend_claims")


def api_refusal(api: tuple[int, int]) -> str | None:
    """Why a plugin written for seam version `api` cannot work here, or None. Older minors are welcome."""
    theirs, ours = (".".join(map(str, version)) for version in (api, BACKEND_API))
    said = f"it was written for backend api {theirs} and this isoinfer has {ours}"
    if api[0] != BACKEND_API[0]:
        newer = api[0] > BACKEND_API[0]
        return f"{said}, another major version: " + ("upgrade isoinfer" if newer else "upgrade the plugin")
    if api[1] > BACKEND_API[1]:
        return f"{said}, an older minor version: upgrade isoinfer or install an older release of the plugin"
    return None


def check_backend(value: object, *, name: str) -> Backend:
    """A created backend. Raises TypeError that lists the members it lacks or that cannot be called as the seam does."""
    from isoinfer.backends.interface import Backend  # here, since it loads numpy and most commands create nothing

    members = {key: member for key, member in vars(Backend).items() if not key.startswith("_")}
    missing = [key for key in members if not hasattr(value, key)]
    if missing:
        raise TypeError(f"isoinfer_backend_create returned {_type(value)}, which lacks {', '.join(sorted(missing))}")
    methods = {key: member for key, member in members.items() if inspect.isfunction(member)}
    wrong = [text for key, member in methods.items() if (text := _call_problem(key, member, getattr(value, key)))]
    if wrong:
        raise TypeError(f"isoinfer_backend_create returned {_type(value)}, whose {'; '.join(wrong)}")
    backend: Backend = value  # type: ignore[assignment]  # the checks above are the proof
    # A backend made from another one easily keeps the other's name, and reports would name the wrong one.
    if backend.name != name:
        raise TypeError(f"isoinfer_backend_create returned a backend named {backend.name!r}; its name is {name!r}")
    return backend


def _descriptor_problems(descriptor: BackendDescriptor, name: str, distribution: str) -> Iterator[str]:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        yield f"entry point {name!r} cannot name a backend: use lower-case letters, digits, '-' and '_', and not 'auto'"
    if descriptor.name != name:
        yield f"its name is {descriptor.name!r} but its entry point is called {name!r}: make them equal"
    if not isinstance(descriptor.vendor, str) or not isinstance(descriptor.summary, str):
        yield "vendor and summary must be strings"
    if not _is_api(descriptor.api):
        yield f"api must be two whole numbers like {BACKEND_API}, not {descriptor.api!r}"
    if normal_name(str(descriptor.distribution)) != normal_name(distribution):
        yield f"its distribution is {descriptor.distribution!r} but {distribution!r} installed it: make them equal"


def _device_problems(device: DeviceInfo) -> Iterator[str]:
    if not isinstance(device.id, str) or not device.id:
        yield f"a device id must be a string that is not empty, not {device.id!r}"
    if not isinstance(device.description, str):
        yield f"device {device.id!r}: the description must be a string"
    if not isinstance(device.score, int) or isinstance(device.score, bool):
        yield f"device {device.id!r}: the score must be a whole number, not {device.score!r}"
    if device.reason is not None and (not isinstance(device.reason, str) or not device.reason):
        yield f"device {device.id!r}: the reason must be None or words"


def _call_problem(name: str, member: Callable[..., Any], mine: object) -> str | None:
    """Why `mine` cannot stand for the protocol's `member`, or None."""
    if not callable(mine):
        return f"{name} cannot be called"
    try:
        signature = inspect.signature(mine)
    except (TypeError, ValueError):  # native callables may not tell
        return None
    # Keyword-only parameters have defaults: that is how minor versions add, so an older plugin may lack them.
    _self, *parameters = inspect.signature(member).parameters.values()
    positional = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    try:
        signature.bind(*positional)
    except TypeError:
        theirs = str(signature).replace("'", "")
        return f"{name}{theirs} cannot be called as {name}({', '.join(positional)})"
    return None


def _is_api(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(type(part) is int and part >= 0 for part in value)


def _expect(value: object, kind: type[T], hook: str) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{hook} returned {_type(value)} instead of {kind.__name__}")
    return value


def _type(value: object) -> str:
    return type(value).__qualname__
