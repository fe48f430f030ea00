"""A loop over rounds on real source code: proposing one round ahead costs almost no acceptance."""

from __future__ import annotations

import argparse
import ast
import calendar
import difflib
import inspect
import optparse
import re
import statistics
import textwrap
import zipfile
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch

from isoinfer.backends.ops import (
    APPEND_HISTORY,
    CONSUME_DRAFTS,
    PROPOSE_NGRAM,
    VERIFY,
    ConsumeSpec,
    HistorySpec,
    NgramSpec,
    VerifySpec,
    bind_reference,
)
from isoinfer.speculation.config import SpeculativeConfig, parse_speculative
from isoinfer.speculation.suffix_index import SuffixIndex

MODULES = (argparse, ast, calendar, difflib, optparse, statistics, textwrap, zipfile)
PROMPT, LENGTH = 500, 1500


def int32(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture(scope="module")
def traces() -> list[list[int]]:
    """Source code of the standard library in words, blanks and signs."""
    vocabulary: dict[str, int] = {}
    texts = (inspect.getsource(module) for module in MODULES)
    words = (re.findall(r"\w+|\s+|[^\w\s]", text)[:LENGTH] for text in texts)
    return [[vocabulary.setdefault(word, len(vocabulary) + 1) for word in text] for text in words]


@dataclass(slots=True)
class Count:
    """Rounds of a row, drafts that were verified, drafts that were accepted."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def per_round(self) -> float:
        return self.accepted / self.rounds


class Loop:
    """Rounds over traces: the target's next tokens are those of the trace, whatever is drafted."""

    def __init__(self, traces: list[list[int]], config: SpeculativeConfig, *, ngram: bool) -> None:
        self.traces, self.num_drafts, self.count = traces, config.num_drafts, Count()
        self.indexes = [SuffixIndex(min_match=config.min_match, max_match=config.max_match) for _ in traces]
        self.done = [PROMPT] * len(traces)
        self.history_SL = torch.zeros((len(traces), LENGTH), dtype=torch.int32)
        for row, trace in enumerate(traces):
            self.indexes[row].append(trace[:PROMPT])
            self.history_SL[row, :PROMPT] = int32(trace[:PROMPT])
        self.drafts: list[list[int]] = [[] for _ in traces]
        self.ngram = ngram
        static = NgramSpec(num_drafts=self.num_drafts, min_ngram=config.min_match, max_ngram=config.max_ngram)
        self.propose_ngram = bind_reference(PROPOSE_NGRAM, static)
        self.append_history = bind_reference(APPEND_HISTORY, HistorySpec(num_tokens=self.num_drafts + 1))
        self.verify = bind_reference(VERIFY, VerifySpec(num_drafts=self.num_drafts))
        self.consume = bind_reference(CONSUME_DRAFTS, ConsumeSpec(num_drafts=self.num_drafts))

    def run(self, depth: int) -> Count:
        while rows := [row for row, trace in enumerate(self.traces) if self.done[row] < len(trace)]:
            indexes = [self.indexes[row] for row in rows]
            ahead = self._window(indexes, self.num_drafts + 1)  # before the round's tokens are known
            token_GJ, accepted_G = self._round(rows)
            if depth == 1:
                drafts_GK, found_G = self._window(indexes, 0)
            else:
                drafts_GK, found_G = self.consume(*ahead, token_GJ, accepted_G, *self._own(rows, token_GJ, accepted_G))
            for row, drafts, found in zip(rows, drafts_GK.tolist(), found_G.tolist(), strict=True):
                self.drafts[row] = drafts[:found]
        return self.count

    def _window(self, indexes: list[SuffixIndex], in_flight: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the host predicts: the tokens in flight and the drafts after them, and how many of both."""
        predicted = [index.propose(self.num_drafts, in_flight) for index in indexes]
        width = in_flight + self.num_drafts
        return int32([row + [0] * (width - len(row)) for row in predicted]), int32([len(row) for row in predicted])

    def _round(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Verify the drafts and settle: the tokens are the trace's."""
        inputs, sampled, starts = [], [], []
        for row in rows:
            trace, done = self.traces[row], self.done[row]
            drafts = self.drafts[row][: len(trace) - done - 1]
            inputs += [trace[done - 1], *drafts]
            sampled += trace[done : done + len(drafts) + 1]
            starts.append(len(drafts) + 1)
            self.count.drafted += len(drafts)
        start_X = int32([0, *accumulate(starts)])
        token_GJ, accepted_G, _, _ = self.verify(int32(sampled), int32(inputs), int32([*range(len(inputs))]), start_X)
        for row, tokens, accepted in zip(rows, token_GJ.tolist(), accepted_G.tolist(), strict=True):
            emitted = tokens[: accepted + 1]
            assert emitted == self.traces[row][self.done[row] : self.done[row] + accepted + 1]
            self.indexes[row].append(emitted)
            self.done[row] += accepted + 1
            self.count.rounds += 1
            self.count.accepted += accepted
        return token_GJ, accepted_G

    def _own(self, rows: list[int], token_GJ: torch.Tensor, accepted_G: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the device finds by itself."""
        slot_G, length_G = int32(rows), int32([self.done[row] for row in rows])
        self.append_history(self.history_SL, slot_G, length_G - accepted_G - 1, token_GJ, accepted_G + 1)
        drafts_GK, found_G = self.propose_ngram(self.history_SL, slot_G, length_G)
        return drafts_GK, found_G * self.ngram


@pytest.mark.parametrize("text", ["suffix:5", "suffix:3:1:32"])
def test_one_round_ahead_keeps_the_acceptance(text: str, traces: list[list[int]]) -> None:
    """Accepted drafts a round at depth 2 are at least 0.95 of those at depth 1; by the host alone they are not."""
    config = parse_speculative(text)
    assert config is not None
    settled, ahead = Loop(traces, config, ngram=True).run(1), Loop(traces, config, ngram=True).run(2)
    host_only = Loop(traces, config, ngram=False).run(2)
    print(f"{text}: accepted a round {settled.per_round:.3f} at depth 1, {ahead.per_round:.3f} at depth 2 ", end="")
    print(f"({ahead.per_round / settled.per_round:.3f}); by the host alone {host_only.per_round:.3f}; ", end="")
    print(f"of the drafts {settled.accepted / settled.drafted:.3f}, {ahead.accepted / ahead.drafted:.3f}")
    assert settled.per_round > 0.25
    assert ahead.per_round >= 0.95 * settled.per_round
    assert ahead.accepted / ahead.drafted >= 0.95 * settled.accepted / settled.drafted
    assert host_only.per_round < 0.95 * settled.per_round
