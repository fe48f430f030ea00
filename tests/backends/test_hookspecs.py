from __future__ import annotations

import subprocess
import sys
import typing

import pluggy

from isoinfer.backends import descriptor, hookspecs, interface


def test_the_hooks_are_these_four_with_these_signatures() -> None:
    types = {**vars(descriptor), **vars(interface)}
    hints = {name: typing.get_type_hints(hook, globalns=types) for name, hook in hookspecs.HOOKS.items()}
    device, config = descriptor.DeviceInfo, descriptor.BackendConfig
    assert hints == {
        "isoinfer_backend_descriptor": {"return": descriptor.BackendDescriptor},
        "isoinfer_backend_probe": {"return": list[descriptor.DeviceInfo]},
        "isoinfer_backend_create": {"device": device, "config": config, "return": interface.Backend},
        "isoinfer_backend_claims": {"device": device, "return": descriptor.Claims},
    }


def test_pluggy_knows_the_same_hooks_and_gives_one_answer_each() -> None:
    manager = pluggy.PluginManager("isoinfer")
    manager.add_hookspecs(hookspecs)
    for name in hookspecs.HOOKS:
        caller = getattr(manager.hook, name)
        assert caller.spec is not None
        assert caller.spec.opts["firstresult"]


def test_nothing_of_the_registry_loads_torch() -> None:
    code = """
import sys
import isoinfer.backends.descriptor, isoinfer.backends.hookspecs, isoinfer.backends.interface
import isoinfer.backends.probe
from isoinfer.backends.registry import Registry
assert Registry.load().select("cpu").name == "cpu"
print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "transformers")))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
