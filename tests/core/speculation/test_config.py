"""Reading `--speculative`."""

from __future__ import annotations

import re

import pytest

from isoinfer.errors import UserError
from isoinfer.speculation.config import SpeculativeConfig, parse_speculative

READ = {
    "ngram:5": ("ngram", 5, 2, 4, 0),
    "ngram:5:2:4": ("ngram", 5, 2, 4, 0),
    "ngram:1:3:3": ("ngram", 1, 3, 3, 0),
    " NGRAM:7:1:8 ": ("ngram", 7, 1, 8, 0),
    "suffix:5": ("suffix", 5, 2, 32, 0),
    "suffix:4:1:16": ("suffix", 4, 1, 16, 0),
    "suffix:4:1:16:2": ("suffix", 4, 1, 16, 2),
}
UNREADABLE = ["", "on", "ngram", "ngram:", "ngram:x", "ngram:5:2", "ngram:5:2:4:1", "ngram:-5", "ngram:5.0", "off:1"]
UNREADABLE += ["suffix:5:2:4:1:1", "medusa:5", "ngram:\u0665", "5:ngram", "suffix 5"]


@pytest.mark.parametrize("text", READ)
def test_what_can_be_read(text: str) -> None:
    method, drafts, low, high, per_token = READ[text]
    expected = SpeculativeConfig(
        method=method,  # type: ignore[arg-type]
        num_drafts=drafts,
        min_match=low,
        max_match=high,
        drafts_per_token=per_token,
    )
    assert parse_speculative(text) == expected


def test_off_is_none() -> None:
    assert parse_speculative("off") is None


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_read_is_shown_with_examples(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"cannot read {text!r} as a way to speculate; write for example")):
        parse_speculative(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ngram:0", "from 1 to 64 drafts are possible, got 0"),
        ("suffix:65", "from 1 to 64 drafts are possible, got 65"),
        ("ngram:5:0:4", "got 0 to 4; write for example"),
        ("ngram:5:4:2", "its lower limit comes first, got 4 to 2"),
        ("suffix:5:2:129", "a match has 1 to 128 tokens"),
    ],
)
def test_numbers_that_cannot_work(text: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        parse_speculative(text)


def test_the_device_looks_for_short_matches_where_the_host_proposes() -> None:
    for fields, longest in (
        ({"method": "ngram", "min_match": 1, "max_match": 8}, 8),
        ({"method": "suffix", "min_match": 2, "max_match": 32}, 4),
        ({"method": "suffix", "min_match": 6, "max_match": 9}, 6),
        ({"method": "suffix", "min_match": 1, "max_match": 3}, 3),
    ):
        assert SpeculativeConfig(num_drafts=5, **fields).max_ngram == longest  # type: ignore[arg-type]


def test_histories_are_kept_where_the_device_proposes() -> None:
    kept = {}
    for text in ("ngram:5", "suffix:5"):
        config = parse_speculative(text)
        assert config is not None
        kept[text] = (config.on_device, config.keeps_history(1), config.keeps_history(2))
    assert kept == {"ngram:5": (True, True, True), "suffix:5": (False, False, True)}


def test_it_describes_itself() -> None:
    config = parse_speculative("suffix:5")
    assert config is not None
    assert config.describe() == "up to 5 drafts by suffix on the host, coupled acceptance"
