"""Our kernels for drafts are the reference, also over strided rows and with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from isoinfer.backends.ops import (
    APPEND_HISTORY,
    CONSUME_DRAFTS,
    PROPOSE_NGRAM,
    VERIFY,
    VERIFY_REJECTION,
    NgramSpec,
    OpSpec,
)
from isoinfer.conformance.arguments import copies, outcome, returned_tensors, written_tensors

OPS = pytest.mark.parametrize(
    "op", [VERIFY, VERIFY_REJECTION, APPEND_HISTORY, PROPOSE_NGRAM, CONSUME_DRAFTS], ids=lambda op: op.name
)


@pytest.fixture(autouse=True)
def one_thread_afterwards(open_backend: Any, need_native: None) -> Iterator[None]:
    """The kernels' team is one for the process."""
    yield
    open_backend()._native.set_threads(1)


def with_strided_rows(arg: torch.Tensor) -> torch.Tensor:
    """The same values as a view of wider rows."""
    if arg.dim() < 2:
        return arg.clone()
    wide = torch.full((arg.shape[0], arg.shape[1] + 5), 77, dtype=arg.dtype)
    wide[:, 2:-3] = arg
    return wide[:, 2:-3]


@OPS
@pytest.mark.parametrize("threads", [1, 3])
def test_every_sample_comes_out_as_the_reference_says(open_backend: Any, op: OpSpec, threads: int) -> None:
    backend = open_backend()
    backend._native.set_threads(threads)
    for seed in range(10):
        for sample in op.samples(torch.float32, seed):
            assert backend.support(op, sample.static).provider == "native"
            args = tuple(map(with_strided_rows, sample.args))
            results = returned_tensors(op, backend.bind(op, sample.static)(*args)) | written_tensors(op, args)
            expected = outcome(op, sample.static, copies(sample.args))
            assert all(torch.equal(results[name], expected[name]) for name in expected), (sample.label, seed)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rejection_never_leaves_the_vocabulary_whatever_the_logits(open_backend: Any, bad: float) -> None:
    sample = [sample for sample in VERIFY_REJECTION.samples(torch.float32, 0) if sample.static.vocab_size == 203][-1]
    args = copies(sample.args)
    args[4][torch.rand(args[4].shape, generator=torch.Generator().manual_seed(0)) < 0.5] = bad
    args[4][::3] = bad
    token_GJ, accepted_G, _, last_token_G = open_backend().bind(VERIFY_REJECTION, sample.static)(*args)
    assert bool(((token_GJ >= 0) & (token_GJ < 203)).all())
    assert torch.equal(token_GJ.gather(1, accepted_G[:, None].long())[:, 0], last_token_G)


def test_long_histories_are_shared_out_among_threads(open_backend: Any) -> None:
    backend = open_backend()
    backend._native.set_threads(3)
    static = NgramSpec(num_drafts=5, min_ngram=2, max_ngram=12)
    history = torch.randint(0, 3, (40, 3000), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    slot, length = torch.arange(40, dtype=torch.int32), 2000 + 20 * torch.arange(40, dtype=torch.int32)
    drafts, found = backend.bind(PROPOSE_NGRAM, static)(history, slot, length)
    expected = PROPOSE_NGRAM.reference(static, history, slot, length)
    assert torch.equal(drafts, expected[0])
    assert torch.equal(found, expected[1])
