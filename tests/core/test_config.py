from __future__ import annotations

import pytest

from isoinfer.config import CacheConfig, SchedulerConfig, parse_bytes
from isoinfer.errors import UserError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("512MiB", 512 << 20),
        ("2G", 2 * 10**9),
        ("2gb", 2 * 10**9),
        (" 1.5 KiB ", 1536),
        ("1e9", 10**9),
        ("100", 100),
        ("100B", 100),
        (123, 123),
        ("1TiB", 1 << 40),
    ],
)
def test_amounts_of_memory(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "four", "-1GiB", "0x10", "1PiB", "1 G i B", "nan", "inf", "1,5G", "1e999"])
def test_what_is_no_amount_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="write for example 4GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.1", 0, -5])
def test_an_amount_below_one_byte_is_refused(text: str | int) -> None:
    with pytest.raises(UserError, match="must be positive"):
        parse_bytes(text)


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
def test_scheduler_sizes(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} must be at least 1, got 0"):
        SchedulerConfig(**{name: 0})


@pytest.mark.parametrize(("field", "known"), [("window_kv", "paged, ring"), ("swa_replay", "exact, bounded, off")])
def test_forms_of_window_kv_are_named(field: str, known: str) -> None:
    with pytest.raises(UserError, match=f"{field} must be one of {known}, got 'both'"):
        CacheConfig(**{field: "both"})
