"""Arguments of ops as trees of tensors, and their names by the op's own signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isoinfer.backends.ops.kv import CanonicalKV
from isoinfer.backends.ops.linear import DenseWeight, Int8Weight
from isoinfer.backends.ops.spec import OpSpec

Tensors = dict[str, torch.Tensor]


def argument_names(op: OpSpec) -> list[str]:
    """Names of the runtime arguments, in order."""
    return _names(op.signature.partition(" -> ")[0].partition("(")[2])


def result_names(op: OpSpec) -> list[str]:
    """Names of the returned tensors; empty for ops that only write."""
    return _names(op.signature.partition(" -> ")[2])


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.strip("()").split(",") if name.strip()]


def map_tensors(fn: Callable[[torch.Tensor], torch.Tensor], arg: Any) -> Any:
    """`arg` with `fn` applied to its tensors. Batches and None stay as they are: they hold no values."""
    if isinstance(arg, torch.Tensor):
        return fn(arg)
    if isinstance(arg, DenseWeight):
        return DenseWeight(fn(arg.tensor_NK))
    if isinstance(arg, Int8Weight):
        return Int8Weight(fn(arg.q_NK), fn(arg.scale_N))
    if isinstance(arg, CanonicalKV):
        return CanonicalKV(fn(arg.k_BSKD), fn(arg.v_BSKD))
    return arg


def copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fresh copies that an op may write to."""
    return tuple(map_tensors(torch.clone, arg) for arg in args)


def float64_copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fresh copies with every float in float64: the same quantised inputs, for the truth."""
    return tuple(map_tensors(_widen, arg) for arg in args)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def written_tensors(op: OpSpec, args: tuple[Any, ...]) -> Tensors:
    """The arguments that `op` writes, by name; KV as `kv.k` and `kv.v`."""
    named: Tensors = {}
    for name, arg in zip(argument_names(op), args, strict=True):
        if name in op.writes:
            named |= {f"{name}.k": arg.k_BSKD, f"{name}.v": arg.v_BSKD} if isinstance(arg, CanonicalKV) else {name: arg}
    return named


def returned_tensors(op: OpSpec, returned: Any) -> Tensors:
    """What the call of `op` returned, by name. AssertionError if it is not what the signature says."""
    names = result_names(op)
    values = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
    assert len(values) == len(names), f"{op.name} returned {len(values)} tensors, its signature has {names}"
    return dict(zip(names, values, strict=True))


def outcome(op: OpSpec, static: Any, args: tuple[Any, ...]) -> Tensors:
    """All outputs of the reference on `args`, which it may overwrite."""
    returned = op.reference(static, *args)
    return returned_tensors(op, returned) | written_tensors(op, args)


def truth(op: OpSpec, static: Any, args: tuple[Any, ...]) -> Tensors:
    """All outputs of the reference in float64 on the same quantised inputs. `args` stay unchanged."""
    return outcome(op, static, float64_copies(args))
