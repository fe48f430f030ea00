"""The embedding returns rows that the caller may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isoinfer.layers.embedding import Embedding


def test_embedding_gives_fresh_rows(make_parts: Callable[..., Any], randn: Callable[..., Any]) -> None:
    table = randn(6, 4)
    rows = Embedding(make_parts({"e": table}), "e", vocab_size=6, hidden_size=4)(
        torch.tensor([5, 0], dtype=torch.int32)
    )
    assert torch.equal(rows, table[[5, 0]])
    assert rows.untyped_storage().data_ptr() != table.untyped_storage().data_ptr()
