from __future__ import annotations

import dataclasses

import pytest

from isoinfer.backends.descriptor import BACKEND_API, BackendConfig, Claims, DeviceInfo, KnownFailure


def test_a_device_is_available_unless_there_is_a_reason() -> None:
    assert DeviceInfo(id="0", description="chip", score=1).available
    assert not DeviceInfo(id="0", description="chip", score=1, reason="no driver").available


def test_plain_data_is_frozen_and_keyword_only() -> None:
    device = DeviceInfo(id="0", description="chip", score=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.score = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        DeviceInfo("0", "chip", 1)  # type: ignore[call-arg]
    assert {device: 1}[DeviceInfo(id="0", description="chip", score=1)] == 1


def test_the_api_is_a_minor_of_major_zero_until_the_surface_is_complete() -> None:
    major, minor = BACKEND_API
    assert major == 0
    assert minor >= 1


def test_defaults_claim_nothing_and_share_nothing() -> None:
    assert Claims() == Claims(profiles=(), known_failures=())
    assert BackendConfig().options is not BackendConfig().options
    failure = KnownFailure(case="op.sample", url="https://example.org/1", expires="2027-01-01")
    assert Claims(known_failures=(failure,)).known_failures[0].case == "op.sample"
