"""Loading a model's weights: rules that say which checkpoint tensors make which weight, carried out one by one.

What it is not: knowledge of any architecture (models bring their rules) or of a backend's packing
(`prepare` does that). Everything is checked before the first byte of data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch

from isoinfer.errors import CheckpointError
from isoinfer.weights.checkpoint import Checkpoint, TensorInfo
from isoinfer.weights.quantization import quant_of

if TYPE_CHECKING:
    from isoinfer.backends.interface import Weight

Transform = Callable[[tuple[torch.Tensor, ...]], torch.Tensor]
Prepare = Callable[[str, torch.Tensor, str | None], "Weight"]
Progress = Callable[[int, int], None]

ROLES = ("linear", "head", "router", "embedding", "vector", "experts")
HARMLESS = ("*rotary_emb.inv_freq", "*.attention.bias", "*.attention.masked_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRule:
    """One weight of a model: made from `sources` by `transform` (default: concatenated along dim 0), of `shape`.

    `transform` must also work on meta tensors: it is run on them to check shapes before loading.
    """

    name: str
    sources: tuple[str, ...]
    role: str
    shape: tuple[int, ...]
    transform: Transform | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        assert self.role in ROLES, self.role
        assert self.sources, self.name

    def build(self, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The weight from the tensors of `sources`."""
        if self.transform is not None:
            return self.transform(tensors)
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


@dataclass(slots=True)
class _Misfits:
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    misshaped: list[str] = field(default_factory=list)

    def message(self, path: str) -> str:
        kinds = (("missing", self.missing), ("unexpected", self.extra), ("of the wrong shape", self.misshaped))
        found = "; ".join(f"{len(names)} {kind}: {', '.join(names)}" for kind, names in kinds if names)
        if not found:
            return ""
        return (
            f"The tensors of {path} do not fit the architecture that its config names ({found}). "
            "Check that config and weights belong together."
        )


def load_weights(
    checkpoint: Checkpoint,
    rules: Sequence[WeightRule],
    prepare: Prepare,
    dtype: torch.dtype,
    quant: str | None,
    progress: Progress | None = None,
    ignored: tuple[str, ...] = (),
) -> dict[str, Weight]:
    """Weights by rule name, each prepared by `prepare(role, tensor, quant)`.

    Tensors have `dtype`, or float32 where they are to be quantised.
    Streams: at any time only the finished weights and one rule's tensors are in memory. `progress(done,
    total)` counts rules. `ignored`: glob patterns of tensors that no rule needs.
    CheckpointError names all missing, unexpected and misshaped tensors, before anything is loaded.
    """
    wanted = [rule for rule in rules if not (rule.optional and _absent(rule, checkpoint.tensors))]
    message = _check(checkpoint.tensors, rules, wanted, ignored).message(checkpoint.path)
    if message:
        raise CheckpointError(message)
    weights: dict[str, Weight] = {}
    for done, rule in enumerate(wanted, start=1):
        own = quant_of(rule.role, quant)
        tensor = _load(checkpoint, rule, dtype if own is None else torch.float32)
        weights[rule.name] = prepare(rule.role, tensor, own)
        if progress is not None:
            progress(done, len(wanted))
    return weights


def _load(checkpoint: Checkpoint, rule: WeightRule, dtype: torch.dtype) -> torch.Tensor:
    """An own, contiguous tensor: checkpoints may hand out views of a mapped file."""
    built = rule.build(tuple(checkpoint.load(source) for source in rule.sources))
    return built.to(dtype, copy=True, memory_format=torch.contiguous_format)


def _absent(rule: WeightRule, tensors: Mapping[str, TensorInfo]) -> bool:
    return not any(source in tensors for source in rule.sources)


def _check(
    tensors: Mapping[str, TensorInfo],
    rules: Iterable[WeightRule],
    wanted: Iterable[WeightRule],
    ignored: tuple[str, ...],
) -> _Misfits:
    misfits = _Misfits()
    for rule in wanted:
        missing = [source for source in rule.sources if source not in tensors]
        misfits.missing += [name for name in missing if name not in misfits.missing]
        if not missing:
            misfits.misshaped += _shape_error(rule, tensors)
    used = {source for rule in rules for source in rule.sources}
    harmless = (*HARMLESS, *ignored)
    misfits.extra += [
        name for name in tensors if name not in used and not any(fnmatchcase(name, pattern) for pattern in harmless)
    ]
    return misfits


def _shape_error(rule: WeightRule, tensors: Mapping[str, TensorInfo]) -> list[str]:
    shapes = [tensors[source].shape for source in rule.sources]
    try:
        built = tuple(rule.build(tuple(torch.empty(shape, device="meta") for shape in shapes)).shape)
    except (RuntimeError, IndexError, ValueError):
        built = None
    if built == rule.shape:
        return []
    stored = ", ".join(f"{source} {list(shape)}" for source, shape in zip(rule.sources, shapes, strict=True))
    return [f"{stored} (expected {list(rule.shape)} for {rule.name})"]
