"""Log-probabilities against log_softmax and sorting in python."""

from __future__ import annotations

import torch

from isoinfer.backends.ops import LOGPROBS, bind_reference


def test_logprobs_ranks_and_alternatives() -> None:
    for sample in LOGPROBS.samples(torch.float32, 0):
        logits, token = sample.args
        own, rank, ids, top = bind_reference(LOGPROBS, sample.static)(*sample.args)
        expected = torch.log_softmax(logits, dim=-1)
        for r, row in enumerate(logits.tolist()):
            chosen = int(token[r])
            torch.testing.assert_close(own[r], expected[r, chosen])
            assert int(rank[r]) == 1 + sum(value > row[chosen] for value in row)
            best = sorted(range(len(row)), key=lambda v: (-row[v], v))[: sample.static.num]
            assert ids[r].tolist() == best
            torch.testing.assert_close(top[r], expected[r, best])
        assert (rank.dtype, ids.dtype, own.dtype) == (torch.int32, torch.int32, torch.float32)
