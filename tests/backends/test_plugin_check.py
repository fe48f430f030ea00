from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from isoinfer.backends.hookspecs import HOOKS, hookimpl
from isoinfer.backends.plugin_check import check_plugin, nearest


def _good() -> dict[str, Any]:
    @hookimpl
    def isoinfer_backend_descriptor() -> None: ...
    @hookimpl
    def isoinfer_backend_probe() -> None: ...
    @hookimpl
    def isoinfer_backend_create(device: Any, config: Any) -> None: ...
    @hookimpl
    def isoinfer_backend_claims(device: Any) -> None: ...

    found = locals()
    return {name: found[name] for name in HOOKS}


def _check(**changes: Any) -> None:
    check_plugin(SimpleNamespace(**{k: v for k, v in {**_good(), **changes}.items() if v is not None}))


def test_a_right_plugin_passes_and_may_have_other_names() -> None:
    _check(helper=lambda: 1, isoinfer_version="1", backend_probe=lambda extra: 1)


def test_an_object_with_methods_passes_too() -> None:
    class Hooks:
        @hookimpl
        def isoinfer_backend_descriptor(self) -> None: ...
        @hookimpl
        def isoinfer_backend_probe(self) -> None: ...
        @hookimpl
        def isoinfer_backend_create(self, device: Any, config: Any) -> None: ...
        @hookimpl(specname="isoinfer_backend_claims")
        def claims(self, device: Any) -> None: ...

    check_plugin(Hooks())


@pytest.mark.parametrize("mark", [hookimpl, lambda function: function])
def test_a_misspelt_hook_names_the_nearest_right_one(mark: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        _check(isoinfer_backend_probe=None, isoinfer_backend_prob=mark(lambda: None))
    expected = "unknown hook isoinfer_backend_prob: did you mean isoinfer_backend_probe?"
    assert str(caught.value) == expected  # and does not also call the right one missing


def test_an_unknown_hook_beside_all_right_ones_is_refused() -> None:
    message = r"^unknown hook isoinfer_backend_creates: did you mean isoinfer_backend_create\?$"
    with pytest.raises(TypeError, match=message):
        _check(isoinfer_backend_creates=lambda device, config: None)


def test_a_marked_function_with_a_foreign_name_lists_the_hooks() -> None:
    with pytest.raises(TypeError, match=r"unknown hook zzz: the hooks are isoinfer_backend_descriptor, "):
        _check(zzz=hookimpl(lambda: None))


@pytest.mark.parametrize("hook", list(HOOKS))
def test_each_hook_is_required(hook: str) -> None:
    with pytest.raises(TypeError, match=f"^hook {hook} is missing$"):
        _check(**{hook: None})


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(TypeError, match=r"^isoinfer_backend_probe lacks .*; hook isoinfer_backend_claims is missing$"):
        _check(isoinfer_backend_claims=None, isoinfer_backend_probe=lambda: None)


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda device: None, "(device)"),
        (lambda config, device: None, "(config, device)"),
        (lambda device, config, more: None, "(device, config, more)"),
        (lambda device, config=None: None, "(device, config=None)"),
        (lambda device, *, config: None, "(device, *, config)"),
        (lambda *args, **kwargs: None, "(*args, **kwargs)"),
    ],
)
def test_a_wrong_signature_prints_both(function: Callable[..., Any], shown: str) -> None:
    right = "(device: DeviceInfo, config: BackendConfig) -> Backend"
    expected = f"isoinfer_backend_create has the wrong signature: yours is {shown}, the hook is {right}"
    with pytest.raises(TypeError, match=f"^{re.escape(expected)}$"):
        _check(isoinfer_backend_create=hookimpl(function))


def test_a_hook_without_its_mark_says_how_to_mark_it() -> None:
    with pytest.raises(TypeError, match=r"^isoinfer_backend_probe lacks the decorator @hookimpl"):
        _check(isoinfer_backend_probe=lambda: None)


def test_a_wrapper_and_a_second_implementation_are_refused() -> None:
    def wrapper() -> Any:
        yield

    with pytest.raises(TypeError, match="isoinfer_backend_probe is a wrapper"):
        _check(isoinfer_backend_probe=hookimpl(wrapper=True)(wrapper))
    with pytest.raises(TypeError, match="isoinfer_backend_probe is implemented twice"):
        _check(other=hookimpl(specname="isoinfer_backend_probe")(lambda: None))


def test_nearest_finds_a_near_name_only() -> None:
    assert nearest("cdua", ["cpu", "cuda"]) == "cuda"
    assert nearest("something", ["cpu", "cuda"]) is None
