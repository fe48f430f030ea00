from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from isoinfer.errors import CheckpointError
from isoinfer.weights.checkpoint import TensorInfo
from isoinfer.weights.loader import WeightRule, load_weights


@dataclass(frozen=True)
class Prepared:
    role: str
    tensor: torch.Tensor
    quant: str | None

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes


class MemoryCheckpoint:
    """Tensors in memory; remembers what was loaded."""

    path, generation_config, config = "memory", {}, {}

    def __init__(self, stored: Mapping[str, torch.Tensor]) -> None:
        self.stored = stored
        self.loaded: list[str] = []

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: TensorInfo(shape=tuple(t.shape), stored="F32") for name, t in self.stored.items()}

    def load(self, name: str) -> torch.Tensor:
        self.loaded.append(name)
        return self.stored[name]

    def tokenizer(self) -> Any:
        raise NotImplementedError


def _checkpoint() -> MemoryCheckpoint:
    return MemoryCheckpoint({"q": torch.randn(4, 3), "k": torch.randn(2, 3), "norm": torch.randn(3)})


def _rule(name: str, *sources: str, shape: tuple[int, ...], role: str = "linear", **more: Any) -> WeightRule:
    return WeightRule(name=name, sources=sources, role=role, shape=shape, **more)


QK = _rule("qk", "q", "k", shape=(6, 3))
NORM = _rule("norm", "norm", shape=(3,), role="vector")


def _load(checkpoint: MemoryCheckpoint, *rules: WeightRule, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"dtype": torch.float32, "quant": None, **more}
    return load_weights(checkpoint, rules, Prepared, **options)


def test_concatenates_sources_and_passes_roles() -> None:
    checkpoint = _checkpoint()
    weights = _load(checkpoint, QK, NORM)
    assert torch.equal(weights["qk"].tensor, torch.cat((checkpoint.stored["q"], checkpoint.stored["k"])))
    assert [weights[name].role for name in ("qk", "norm")] == ["linear", "vector"]


def test_casts_vectors_too_and_never_shares_memory() -> None:
    checkpoint = _checkpoint()
    weights = _load(checkpoint, QK, NORM, dtype=torch.bfloat16)
    assert {weight.tensor.dtype for weight in weights.values()} == {torch.bfloat16}
    same = _load(checkpoint, QK, NORM)["norm"].tensor
    assert same.data_ptr() != checkpoint.stored["norm"].data_ptr()


def test_transform_result_is_contiguous() -> None:
    rule = _rule("t", "q", shape=(3, 4), transform=lambda tensors: tensors[0].T)
    tensor = _load(_checkpoint(), rule, ignored=("k", "norm"))["t"].tensor
    assert tensor.is_contiguous()
    assert tensor.shape == (3, 4)


def test_quantisation_goes_to_linears_only() -> None:
    rules = (QK, NORM, _rule("e", "q", shape=(4, 3), role="embedding"), _rule("x", "q", shape=(4, 3), role="experts"))
    weights = _load(_checkpoint(), *rules, quant="int8")
    assert {name: weight.quant for name, weight in weights.items()} == {
        "qk": "int8",
        "norm": None,
        "e": None,
        "x": None,
    }


def test_a_tensor_may_serve_two_rules() -> None:
    checkpoint = _checkpoint()
    weights = _load(checkpoint, QK, NORM, _rule("again", "q", shape=(4, 3)))
    assert torch.equal(weights["again"].tensor, weights["qk"].tensor[:4])


def test_progress_counts_rules() -> None:
    calls: list[tuple[int, int]] = []
    _load(_checkpoint(), QK, NORM, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 2), (2, 2)]


def test_all_misfits_are_named_before_anything_is_loaded() -> None:
    checkpoint = _checkpoint()
    rules = (_rule("a", "q", "lost", shape=(6, 3)), _rule("b", "gone", shape=(1,)), _rule("n", "norm", shape=(4,)))
    with pytest.raises(CheckpointError) as caught:
        _load(checkpoint, *rules)
    message = str(caught.value)
    assert "2 missing: lost, gone" in message
    assert "1 unexpected: k" in message
    assert "1 of the wrong shape: norm [3] (expected [4] for n)" in message
    assert checkpoint.loaded == []


def test_sources_that_cannot_be_joined_are_misshaped() -> None:
    with pytest.raises(CheckpointError, match=r"q \[4, 3\], norm \[3\] \(expected \[5, 3\] for a\)"):
        _load(_checkpoint(), _rule("a", "q", "norm", shape=(5, 3)), ignored=("k",))


def test_optional_rule_needs_all_of_its_sources_or_none() -> None:
    none = _rule("bias", "q.bias", "k.bias", shape=(6,), optional=True)
    assert set(_load(_checkpoint(), QK, NORM, none)) == {"qk", "norm"}
    some = _rule("part", "norm", "k.bias", shape=(6,), optional=True)
    with pytest.raises(CheckpointError, match=r"1 missing: k\.bias"):
        _load(_checkpoint(), QK, NORM, some)


def test_harmless_and_ignored_extras() -> None:
    checkpoint = _checkpoint()
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2), "lm_head.weight": torch.ones(1)}
    checkpoint.stored = {**checkpoint.stored, **extra}
    assert set(_load(checkpoint, QK, NORM, ignored=("lm_head.*",))) == {"qk", "norm"}
    assert not set(extra) & set(checkpoint.loaded)
    with pytest.raises(CheckpointError, match=r"1 unexpected: lm_head\.weight\)"):
        _load(checkpoint, QK, NORM)


def test_only_one_rules_tensors_are_alive_at_a_time() -> None:
    class Fresh(MemoryCheckpoint):
        alive: list[Any] = []  # noqa: RUF012

        def load(self, name: str) -> torch.Tensor:
            import weakref

            tensor = super().load(name).clone()
            self.alive = [ref for ref in self.alive if ref() is not None]
            assert len(self.alive) < 2, "tensors of an earlier rule are still held"
            self.alive.append(weakref.ref(tensor))
            return tensor

    checkpoint = Fresh(_checkpoint().stored)
    _load(checkpoint, *(_rule(f"qk{i}", "q", "k", shape=(6, 3)) for i in range(5)), NORM)
