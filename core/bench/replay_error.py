"""How far next-token distributions after a prefix hit are from those of a cold run, on given prompts.

Of each prompt the first part is cached, then it is computed twice with the tokens that follow: after that hit, and
cold. Compared are the distributions at these tokens, where the text itself says what comes next: nothing is sampled,
so both runs see the same tokens. Suffixes: P places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isoinfer.engine.messages import AddRequest, CoreSampling, TokenUpdate
from isoinfer.errors import StepError

if TYPE_CHECKING:
    import numpy.typing as npt

    from isoinfer.engine.engine import Engine

    Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayError:
    """Of one prompt. `num_cached`: tokens that were not computed after the hit. `kl`: the mean over its places of
    the divergence of the distribution after a hit from the cold one, in nats; `kl_max` the largest. `agreement`: share
    of places where both find the same token likeliest.
    """

    num_tokens: int
    num_cached: int
    num_places: int
    kl: float
    kl_max: float
    agreement: float


class ReplayMeter:
    """Runs prompts through an engine that nobody else uses meanwhile."""

    def __init__(self, engine: Engine, *, vocab_size: int, block_size: int, num_places: int) -> None:
        self._engine, self._vocab_size = engine, vocab_size
        self._block_size, self._num_places = block_size, num_places

    def measure(self, prompts: Sequence[Sequence[int]]) -> Iterator[ReplayError | None]:
        """One for each prompt of token ids; None where it is too short for a hit that is longer than its replay."""
        for number, prompt in enumerate(prompts):
            hit = max(len(prompt) - 1 - self._num_places, 0) // self._block_size * self._block_size
            tokens = np.array(prompt[: hit + 1 + self._num_places], dtype=np.int32)
            yield self._measure(tokens, hit, salt=f"replay-error-{number}") if hit else None

    def _measure(self, tokens_L: npt.NDArray[np.int32], hit: int, salt: str) -> ReplayError | None:
        first = hit + 1  # the first token after the hit predicts this one
        self._ask(tokens_L[:hit], salt, first=None, cold=False)
        num_cached, hot_PV = self._ask(tokens_L, salt, first=first, cold=False)
        if num_cached == 0:
            return None
        _, cold_PV = self._ask(tokens_L, salt, first=first, cold=True)
        assert hot_PV.shape == cold_PV.shape == (self._num_places, self._vocab_size), (hot_PV.shape, cold_PV.shape)
        kl_P = (np.exp(cold_PV) * (cold_PV - hot_PV)).sum(axis=1)
        agrees_P = cold_PV.argmax(axis=1) == hot_PV.argmax(axis=1)
        return ReplayError(
            num_tokens=tokens_L.size,
            num_cached=num_cached,
            num_places=self._num_places,
            kl=float(kl_P.mean()),
            kl_max=float(kl_P.max()),
            agreement=float(agrees_P.mean()),
        )

    def _ask(
        self, tokens_L: npt.NDArray[np.int32], salt: str, *, first: int | None, cold: bool
    ) -> tuple[int, Float64Array]:
        """Cached tokens, and the log-probabilities at the places from `first` on, which predict that token."""
        sampling = CoreSampling(
            max_tokens=1,
            seed=0,
            temperature=0.0,
            num_prompt_logprobs=-1 if first is None else self._vocab_size,
            prompt_logprobs_start=first or 1,
        )
        self._engine.add(
            AddRequest(
                request_id=salt,
                prompt_token_ids=tokens_L,
                sampling=sampling,
                cache_salt=salt,
                prefix_caching=not cold,
            )
        )
        updates: list[TokenUpdate] = []
        while not self._engine.is_idle:
            updates += self._engine.step()
        if updates[-1].finish_reason == "error":
            raise StepError(updates[-1].error)
        return updates[-1].num_cached_tokens, _dense(updates, self._vocab_size)


def _dense(updates: Sequence[TokenUpdate], vocab_size: int) -> Float64Array:
    """The prompt's log-probabilities [P, V] in the order of token ids."""
    parts = [np.zeros((0, vocab_size))]
    for update in updates:
        if (found := update.prompt_logprobs) is not None:
            part_PV = np.full((found.top_ids_TX.shape[0], vocab_size), np.nan)
            np.put_along_axis(part_PV, found.top_ids_TX.astype(np.int64), found.top_logprobs_TX, axis=1)
            parts.append(part_PV)
    return np.concatenate(parts)
