"""What a step may hold: prompts and decodes together, or one kind a step as a group of replicas needs it.

Replicas that share experts run every step together, so all of them must run the same kind of step. Each
votes, and the votes decide by rules that every replica applies alike (facts: DeepInfer's scheduler).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Phase = Literal["mixed", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What one replica knows before a step. `can_prefill`: a prompt waits that could start, or is not complete."""

    can_prefill: bool
    can_decode: bool
    kv_usage: float


class PhaseRule(Protocol):
    """Decides the kind of the next step."""

    def choose(self, situation: Callable[[], Situation]) -> Phase: ...


class Mixed:
    """Prompt chunks and decodes share every step."""

    def choose(self, situation: Callable[[], Situation]) -> Phase:
        """Always both."""
        return "mixed"


Gather = Callable[[bool], Sequence[bool]]


def alone(vote: bool) -> Sequence[bool]:
    """The votes of a group of one."""
    return (vote,)


class TwoPhase:
    """A step is prefill or decode, never both, and the same on every replica of a group.

    `gather` brings every replica's vote to each. A lone engine prefills as soon as it can, with one decode
    step between two prefill steps, so that neither waits. In a group, every `all_interval` decode steps a
    prefill happens if all can and none is fuller than `max_usage`; every `any_interval` steps one is enough.
    """

    def __init__(
        self,
        gather: Gather = alone,
        *,
        all_interval: int = 70,
        any_interval: int = 100,
        max_usage: float = 0.9,
    ) -> None:
        self._gather = gather
        self._all_interval, self._any_interval, self._max_usage = all_interval, any_interval, max_usage
        self._decodes = 0

    def choose(self, situation: Callable[[], Situation]) -> Phase:
        """Vote, and count. Every replica calls this once before each step."""
        phase = self._vote(situation())
        self._decodes = 0 if phase == "prefill" else self._decodes + 1
        return phase

    def _vote(self, situation: Situation) -> Phase:
        votes = self._gather(situation.can_prefill and situation.kv_usage <= self._max_usage)
        if len(votes) == 1:
            due = self._decodes > 0 or not situation.can_decode
            return "prefill" if situation.can_prefill and due else "decode"
        if not any(self._gather(situation.can_decode)):
            # Nobody decodes, so no step is lost by starting now, and no KV comes back by waiting.
            return "prefill" if any(self._gather(situation.can_prefill)) else "decode"
        if self._decodes and self._decodes % self._any_interval == 0:
            return "prefill" if any(self._gather(situation.can_prefill)) else "decode"
        if self._decodes % self._all_interval == 0:
            return "prefill" if all(votes) else "decode"
        return "decode"
