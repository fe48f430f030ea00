from __future__ import annotations

from typing import Any

import pytest

from isoinfer.backends.answer_check import (
    api_refusal,
    check_backend,
    check_claims,
    check_descriptor,
    check_devices,
    normal_name,
)
from isoinfer.backends.descriptor import BACKEND_API, BackendDescriptor, Claims, DeviceInfo
from isoinfer.backends.interface import Backend


def _descriptor(**changes: Any) -> BackendDescriptor:
    fields = {"name": "chip", "vendor": "v", "api": (0, 1), "distribution": "chip-dist", **changes}
    return BackendDescriptor(**fields)


def _device(**changes: Any) -> DeviceInfo:
    return DeviceInfo(**{"id": "0", "description": "d", "score": 1, **changes})


def test_a_right_descriptor_passes_whatever_the_spelling_of_its_distribution() -> None:
    descriptor = _descriptor(distribution="Chip_Dist")
    assert check_descriptor(descriptor, name="chip", distribution="chip-dist") is descriptor
    assert normal_name("A._b-C") == "a-b-c"


@pytest.mark.parametrize("value", [None, {"name": "chip"}, "chip", BackendDescriptor])
def test_a_descriptor_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"isoinfer_backend_descriptor returned .* instead of BackendDescriptor"):
        check_descriptor(value, name="chip", distribution="chip-dist")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "chop"}, "its name is 'chop' but its entry point is called 'chip'"),
        ({"distribution": "other"}, "its distribution is 'other' but 'chip-dist' installed it"),
        ({"api": [0, 1]}, "api must be two whole numbers"),
        ({"api": (0, 1, 2)}, "api must be two whole numbers"),
        ({"api": ("0", 1)}, "api must be two whole numbers"),
        ({"api": (0, -1)}, "api must be two whole numbers"),
        ({"vendor": None}, "vendor and summary must be strings"),
    ],
)
def test_each_field_of_a_descriptor_is_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_descriptor(_descriptor(**changes), name="chip", distribution="chip-dist")


@pytest.mark.parametrize("name", ["auto", "a:b", "Chip", "", "0chip"])
def test_a_name_that_could_not_be_chosen_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="cannot name a backend"):
        check_descriptor(_descriptor(name=name), name=name, distribution="chip-dist")


def test_the_handshake() -> None:
    major, minor = BACKEND_API
    assert api_refusal(BACKEND_API) is None
    assert all(api_refusal((major, older)) is None for older in range(minor))
    newer = api_refusal((major, minor + 1))
    assert newer is not None
    assert f"written for backend api {major}.{minor + 1} and this isoinfer has {major}.{minor}" in newer
    assert "upgrade isoinfer" in newer
    other = api_refusal((major + 1, 0))
    assert other is not None
    assert "another major version: upgrade isoinfer" in other


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned NoneType instead of list"),
        ((_device(),), "returned tuple instead of list"),
        (["0"], r"\(an item\) returned str instead of DeviceInfo"),
        ([], "returned no device: return one DeviceInfo whose `reason`"),
        ([_device(), _device()], "device id '0' occurs twice"),
        ([_device(id=0)], "a device id must be a string that is not empty, not 0"),
        ([_device(score="high")], "the score must be a whole number, not 'high'"),
        ([_device(score=True)], "the score must be a whole number, not True"),
        ([_device(reason="")], "the reason must be None or words"),
        ([_device(description=None)], "the description must be a string"),
    ],
)
def test_wrong_devices_are_refused(value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_devices(value)


def test_right_devices_and_claims_pass() -> None:
    devices = [_device(), _device(id="1", reason="busy")]
    assert check_devices(devices) == tuple(devices)
    assert check_claims(Claims()) == Claims()
    with pytest.raises(TypeError, match="isoinfer_backend_claims returned dict instead of Claims"):
        check_claims({})


def _backend(**changes: Any) -> Any:
    members: dict[str, Any] = {key: lambda *args: None for key in vars(Backend) if not key.startswith("_")}
    members.update({"name": "chip", **changes})
    return type("Chip", (), {key: value for key, value in members.items() if value is not ...})()


def test_a_whole_backend_passes() -> None:
    backend = _backend()
    assert check_backend(backend, name="chip") is backend


def test_the_members_that_a_backend_lacks_are_listed() -> None:
    with pytest.raises(TypeError, match=r"returned Chip, which lacks bind, plan_attention$"):
        check_backend(_backend(bind=..., plan_attention=...), name="chip")
    with pytest.raises(TypeError, match="returned NoneType, which lacks allocate_kv, bind, bind_model, "):
        check_backend(None, name="chip")


def test_methods_must_take_what_the_seam_gives() -> None:
    assert check_backend(_backend(bind=lambda self, op, static, more=1: None), name="chip")
    assert check_backend(_backend(empty=min), name="chip")  # a native callable that does not tell its signature
    with pytest.raises(TypeError, match=r"whose bind\(op\) cannot be called as bind\(op, static\)$"):
        check_backend(_backend(bind=lambda self, op: None), name="chip")
    with pytest.raises(TypeError, match=r"whose memory\(x\) .*memory\(\); bind\(op, static, more\) cannot"):
        check_backend(_backend(bind=lambda self, op, static, more: None, memory=lambda self, x: None), name="chip")


def test_methods_must_be_callable_and_the_name_its_own() -> None:
    with pytest.raises(TypeError, match="whose bind cannot be called"):
        check_backend(_backend(bind=3), name="chip")
    with pytest.raises(TypeError, match="a backend named 'cpu'; its name is 'chip'"):
        check_backend(_backend(name="cpu"), name="chip")
