"""Binding an op to its own reference: what tests and the last fallback call instead of a provider."""

from __future__ import annotations

from functools import partial
from typing import Any

from isoinfer.backends.ops.spec import OpSpec


def bind_reference(op: OpSpec, static: Any) -> partial[Any]:
    """The reference of `op` with `static` filled in; it takes canonical weights and KV."""
    assert isinstance(static, op.static_type), f"{op.name} takes {op.static_type.__name__}, got {static!r}"
    return partial(op.reference, static)
