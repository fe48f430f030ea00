"""Rows of a table."""

from __future__ import annotations

import torch

from isoinfer.backends.ops import EMBEDDING, bind_reference


def test_each_id_gets_its_row() -> None:
    for sample in EMBEDDING.samples(torch.bfloat16, 0):
        ids, weight = sample.args
        out = bind_reference(EMBEDDING, sample.static)(ids, weight)
        assert all(torch.equal(out[t], weight.tensor_NK[i]) for t, i in enumerate(ids.tolist()))
