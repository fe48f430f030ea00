"""Rules against the tensors that transformers really writes."""

from __future__ import annotations

from typing import Any

from isoinfer.models.registry import resolve
from isoinfer.weights.open import open_checkpoint


def test_rules_use_every_tensor_of_the_checkpoint_and_no_other(case: Any) -> None:
    checkpoint = open_checkpoint(str(case.path))
    model = resolve(checkpoint.config)
    used = {source for rule in model.weight_rules() for source in rule.sources}
    assert used == set(checkpoint.tensors)


def test_names_are_unique(case: Any) -> None:
    names = [rule.name for rule in resolve(open_checkpoint(str(case.path)).config).weight_rules()]
    assert len(names) == len(set(names))


def test_a_tied_head_comes_from_the_embedding(tiny_config: dict[str, Any]) -> None:
    tied, free = resolve({**tiny_config, "tie_word_embeddings": True}), resolve(tiny_config)
    sources = {rule.name: rule.sources for rule in tied.weight_rules()}
    assert sources["lm_head"] == sources["embed"] == ("model.embed_tokens.weight",)
    assert tied.ignored_tensors() == ("lm_head.weight",)
    assert {rule.name: rule.sources for rule in free.weight_rules()}["lm_head"] == ("lm_head.weight",)
    assert free.ignored_tensors() == ()
