"""The public names are frozen: a new one needs a visible decision here."""

from __future__ import annotations

import isoinfer

NAMES = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "__version__"]


def test_the_public_names_are_these_and_all_exist() -> None:
    assert isoinfer.__all__ == NAMES
    assert dir(isoinfer) == sorted(NAMES)
    assert all(getattr(isoinfer, name) is not None for name in NAMES)
