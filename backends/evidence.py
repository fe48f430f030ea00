"""How it is known that a backend's providers work: claims per op, each with the gate that shows it.

A backend's package holds them in `evidence.json`, one section a word. `by` is what shows it: the test
file of the gate, or the stored result of a run on the device:

    {
      "interpreted": {
        "by": "tests/gates/test_interpreted_cuda.py",
        "served": {"rms_norm": ["triton", "torch"], "argmax": ["triton"]}
      }
    }

`isoinfer explain` and docs/support.md show these words. The gate proves its own section: it notes the
(op, provider) of everything that it executed and judged, and ends with
`check_claims("cuda", "interpreted", executed)`. A backend without the file has no evidence.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from isoinfer.backends.plugin_source import find_sources

WORDS = ("device", "emulated", "interpreted", "compiled", "schema-checked")
"""Strongest first.

device: ran on the real target and its numbers were judged. emulated: the backend's code ran over an
emulation of the operators, the vendor's or a library's, that enforces their constraints. interpreted:
the kernel ran in a language's interpreter and its numbers were judged. compiled: every configuration was built for the
target. schema-checked: the real operator schemas accepted every call of a whole engine step.
"""
FILE = "evidence.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One word: what shows it, and the (op, provider) pairs that it is claimed for, in the file's order."""

    word: str
    by: str
    served: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All claims of one backend, strongest word first."""

    claims: tuple[Claim, ...] = field(default=())

    def words(self, op: str, provider: str) -> list[str]:
        """What is known of `provider` serving `op`, strongest first. Empty: nothing."""
        return [claim.word for claim in self.claims if (op, provider) in claim.served]

    def providers(self, op: str) -> list[str]:
        """Providers of `op` of which anything is known, in the file's order."""
        return list(dict.fromkeys(provider for claim in self.claims for name, provider in claim.served if name == op))


def parse_evidence(text: str) -> Evidence:
    """The claims in the text of an `evidence.json`. ValueError for an unknown word or another form."""
    data = json.loads(text)
    if unknown := sorted(set(data) - set(WORDS)):
        raise ValueError(f"{unknown[0]!r} is no evidence; the words are {', '.join(WORDS)}")
    return Evidence(claims=tuple(_claim(word, data[word]) for word in WORDS if word in data))


def _claim(word: str, section: Mapping[str, Any]) -> Claim:
    if set(section) != {"by", "served"}:
        raise ValueError(f"{word} must have exactly `by` and `served`, not {', '.join(sorted(section))}")
    served = ((op, provider) for op, providers in section["served"].items() for provider in providers)
    return Claim(word=word, by=section["by"], served=tuple(served))


def evidence_of(backend: str) -> Evidence:
    """The claims of the installed backend called `backend`: none where its package has no file of them."""
    for source in find_sources():
        package = source.value.partition(":")[0].rpartition(".")[0]
        if source.name == backend and package:
            file = files(package) / FILE
            return parse_evidence(file.read_text(encoding="utf-8")) if file.is_file() else Evidence()
    return Evidence()


def check_claims(backend: str, word: str, executed: Iterable[tuple[str, str]]) -> None:
    """Compare what `backend` claims under `word` with what a gate `executed`, as (op name, provider name) pairs.

    Give only what really ran and passed, with the provider that really served it: `CaseResult.op` and
    `.provider` where cases passed, or the op and provider whose kernel was built. Nothing executed is
    a failure, as are a claim that was not executed and an execution that is not claimed; the
    AssertionError then shows the `served` that is right, to be put into the backend's evidence.json
    (and run scripts/support-table). To add a section, write it with its `by` and an empty `served`.
    """
    assert word in WORDS, word
    found = frozenset(executed)
    if not found:
        raise AssertionError(f"{backend}: nothing was executed, so nothing is {word}")
    claimed = {pair for claim in evidence_of(backend).claims if claim.word == word for pair in claim.served}
    if found != claimed:
        raise AssertionError(
            f"{FILE} of {backend} does not say what is {word}: not executed {_pairs(claimed - found)}; "
            f"not claimed {_pairs(found - claimed)}. Right is\n{json.dumps(served(found), indent=2)}"
        )


def served(pairs: Collection[tuple[str, str]]) -> dict[str, list[str]]:
    """(op, provider) pairs in the form of the file: providers by op, both sorted."""
    ops = sorted({op for op, _ in pairs})
    return {op: sorted(provider for name, provider in pairs if name == op) for op in ops}


def _pairs(pairs: Collection[tuple[str, str]]) -> str:
    return ", ".join(f"{op} by {provider}" for op, provider in sorted(pairs)) or "none"
