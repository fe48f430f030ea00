"""Penalties, bias and mask against explicit python."""

from __future__ import annotations

from collections import Counter

import torch

from isoinfer.backends.ops import BIAS_LOGITS, MASK_LOGITS, PENALIZE, LogitsSpec, bind_reference


def _penalized(row: list[float], prompt: list[int], output: list[int], presence: float, frequency: float, rep: float):
    new = list(row)
    for token in set(prompt) | set(output):
        new[token] = new[token] / rep if new[token] > 0 else new[token] * rep
    for token, count in Counter(output).items():
        new[token] -= frequency * count + presence
    return new


def test_penalties_equal_a_python_loop() -> None:
    for sample in PENALIZE.samples(torch.float32, 0):
        logits, history, slot, prompt_len, length, presence, frequency, repetition = sample.args
        logits = logits.double()
        expected = []
        for r, row in enumerate(logits.tolist()):
            tokens = history[slot[r], : length[r]].tolist()
            cut = int(prompt_len[r])
            penalties = (float(presence[r]), float(frequency[r]), float(repetition[r]))
            expected.append(_penalized(row, tokens[:cut], tokens[cut:], *penalties))
        bind_reference(PENALIZE, sample.static)(logits, *sample.args[1:])
        torch.testing.assert_close(logits, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_neutral_penalties_change_no_bit() -> None:
    sample = next(iter(PENALIZE.samples(torch.float32, 0)))
    logits, neutral = sample.args[0].clone(), (torch.zeros(4), torch.zeros(4), torch.ones(4))
    bind_reference(PENALIZE, sample.static)(logits, *sample.args[1:5], *neutral)
    assert torch.equal(logits, sample.args[0])


def test_bias_adds_repeats_and_bans() -> None:
    logits = torch.zeros(2, 4)
    entries = (torch.tensor([0, 0, 1]).int(), torch.tensor([2, 2, 0]).int(), torch.tensor([1.5, 0.5, -torch.inf]))
    bind_reference(BIAS_LOGITS, LogitsSpec(vocab_size=4))(logits, *entries)
    assert logits.tolist() == [[0.0, 0.0, 2.0, 0.0], [-torch.inf, 0.0, 0.0, 0.0]]


def test_mask_reads_bits_of_words() -> None:
    for sample in MASK_LOGITS.samples(torch.float32, 0):
        logits, mask = sample.args[0].clone(), sample.args[1]
        bind_reference(MASK_LOGITS, sample.static)(logits, mask)
        for r, words in enumerate(mask.tolist()):
            for token in range(sample.static.vocab_size):
                allowed = (words[token // 32] & 0xFFFFFFFF) >> (token % 32) & 1
                assert logits[r, token] == (sample.args[0][r, token] if allowed else -torch.inf)
