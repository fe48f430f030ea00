"""Logits of every architecture against transformers, in float32, however the work is cut into steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from isoinfer.errors import CheckpointError

TOLERANCE = 1e-4
PROMPT = torch.randint(0, 128, (23,), generator=torch.Generator().manual_seed(1)).tolist()
OTHER = torch.randint(0, 128, (11,), generator=torch.Generator().manual_seed(2)).tolist()

Open = Callable[..., Any]


def assert_close(ours_TV: torch.Tensor, theirs_TV: torch.Tensor) -> None:
    assert theirs_TV.std() > 0.3, "the oracle's logits are too flat for the tolerance to mean anything"
    torch.testing.assert_close(ours_TV, theirs_TV, atol=TOLERANCE, rtol=0.0)


@pytest.mark.parametrize("sizes", [(23,), (9, 1, 10, 3), (1,) * 23], ids=["whole", "chunked", "token-by-token"])
def test_logits_equal_transformers_for_any_chunking(case: Any, open_session: Open, sizes: tuple[int, ...]) -> None:
    session, starts = open_session(1), [sum(sizes[:i]) for i in range(len(sizes))]
    chunks = [PROMPT[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    ours_TV = torch.cat([session.step({0: chunk})[0] for chunk in chunks])
    assert_close(ours_TV, case.logits(PROMPT))


def test_ragged_rows_in_one_batch(case: Any, open_session: Open) -> None:
    session = open_session(2)
    steps = [{0: PROMPT[:14], 1: OTHER[:3]}, {1: OTHER[3:10], 0: PROMPT[14:15]}, {0: PROMPT[15:], 1: OTHER[10:]}]
    parts: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for chunks in steps:
        for row, logits_TV in zip(chunks, session.step(chunks), strict=True):
            parts[row].append(logits_TV)
    assert_close(torch.cat(parts[0]), case.logits(PROMPT))
    assert_close(torch.cat(parts[1]), case.logits(OTHER))


def test_a_window_group_holds_no_more_than_its_window_and_a_full_group_everything(open_session: Open) -> None:
    """What goes back is made NaN and handed out again, so the tests above show that nobody reads it."""
    session = open_session(1)
    for token in PROMPT:
        session.step({0: [token]})
        for group in session.groups:
            length, window = session.lengths[0], group.spec.window
            first = 0 if window is None else max(0, length - window + 1)
            assert group.held(0) == len({position // session.size for position in range(first, length)})


@pytest.mark.parametrize(("dtype", "quant", "limit"), [("bfloat16", None, 0.04), ("float32", "int8", 0.1)])
def test_low_precision_stays_near(case: Any, open_session: Open, dtype: str, quant: str | None, limit: float) -> None:
    (ours_TV,) = open_session(1, dtype, quant).step({0: PROMPT})
    theirs_TV = case.logits(PROMPT)
    assert (ours_TV - theirs_TV).norm() < limit * theirs_TV.norm()


WITH_WINDOWS = ("gpt-oss", "mistral-window", "qwen2")


@pytest.mark.parametrize("sizes", [(23,), (9, 1, 10, 3), (1,) * 23], ids=["whole", "chunked", "token-by-token"])
def test_windows_in_rings_equal_transformers_for_any_chunking(
    case: Any, open_session: Open, sizes: tuple[int, ...]
) -> None:
    if case.name not in WITH_WINDOWS:
        with pytest.raises(CheckpointError, match="no layer has a window"):
            open_session(1, rings=True)
        return
    session, starts = open_session(1, rings=True), [sum(sizes[:i]) for i in range(len(sizes))]
    chunks = [PROMPT[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    ours_TV = torch.cat([session.step({0: chunk})[0] for chunk in chunks])
    assert_close(ours_TV, case.logits(PROMPT))


def test_each_row_has_a_ring_of_its_own(case: Any, open_session: Open) -> None:
    if case.name not in WITH_WINDOWS:
        pytest.skip("no layer has a window")
    session = open_session(2, rings=True)
    steps = [{0: PROMPT[:14], 1: OTHER[:3]}, {1: OTHER[3:10], 0: PROMPT[14:15]}, {0: PROMPT[15:], 1: OTHER[10:]}]
    parts: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for chunks in steps:
        for row, logits_TV in zip(chunks, session.step(chunks), strict=True):
            parts[row].append(logits_TV)
    assert_close(torch.cat(parts[0]), case.logits(PROMPT))
    assert_close(torch.cat(parts[1]), case.logits(OTHER))
