"""The fingerprint: equal however the work is cut, different or refused after every kind of mix-up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.errors import StepError

TEXT = (5, 9, 2, 7, 7, 1, 3, 8, 4, 6)
OTHER = (6, 4, 8, 3, 1, 7, 7, 2, 9, 5)
TABLE, OTHER_TABLE = (3, 1, 7), (2, 9, 5)
WINDOWS = ((None,), (3,), (None, 3), (6, None, 5))


def tables(windows, table):
    """Blocks of each group: those of the first, and others in the further ones."""
    return tuple(tuple(block + 10 * group for block in table) for group in range(len(windows)))


def prefill(row, windows, tokens=TEXT, table=TABLE, start=0):
    return row(tokens=tokens[start:], start=start, tables=tables(windows, table))


def decode(row, windows, token=11, start=10, table=TABLE):
    return row(tokens=(token,), start=start, tables=tables(windows, table))


@pytest.fixture(params=WINDOWS, ids=str)
def windows(request):
    return request.param


def test_chunks_batches_and_blocks_do_not_matter(make_driver, row, windows):
    whole = make_driver(*windows)
    (want,) = whole.answers(prefill(row, windows))
    (want_next,) = whole.answers(decode(row, windows))
    cut = make_driver(*windows)
    first = prefill(row, windows, TEXT[:3], (8, 2, 1))
    cut.hidden(first, prefill(row, windows, OTHER, (4, 5, 6)))
    *_, got = cut.answers(decode(row, windows, table=(4, 5, 6)), prefill(row, windows, TEXT, (8, 2, 1), start=3))
    got_next, _ = cut.answers(decode(row, windows, table=(8, 2, 1)), decode(row, windows, start=11, table=(4, 5, 6)))
    assert (got, got_next) == (want, want_next)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_cut_into_chunks_gives_the_same_answers_everywhere(make_driver, row, data):
    windows = data.draw(st.sampled_from(WINDOWS))
    tokens = tuple(data.draw(st.lists(st.integers(0, 96), min_size=1, max_size=12)))
    cuts = sorted({0, len(tokens), *data.draw(st.lists(st.integers(0, len(tokens)), max_size=4))})
    want = make_driver(*windows).hidden(prefill(row, windows, tokens))
    driver = make_driver(*windows)
    parts = [driver.hidden(prefill(row, windows, tokens[:end], start=start)) for start, end in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), want)


def test_a_window_forgets_and_nothing_else_does(make_driver, row):
    for windows, same in (((3,), True), ((5,), False), ((None,), False)):
        answers = []
        for tokens in (TEXT, (96, *TEXT[1:])):
            driver = make_driver(*windows)
            driver.hidden(prefill(row, windows, tokens[:4]))
            answers += driver.answers(prefill(row, windows, tokens[:5], start=4))
        assert (answers[0] == answers[1]) is same, windows


def wrong(driver, good, bad):
    """What a decode step answers when it is as in `bad`, or the error."""
    try:
        return driver.answers(bad)
    except StepError as error:
        return str(error)


@pytest.fixture
def ready(make_driver, row, windows):
    """A driver with two requests in it, a decode step of the first that has not run, and its right answer."""
    driver, twin = make_driver(*windows), make_driver(*windows)
    good = decode(row, windows)
    for each in (driver, twin):
        each.hidden(prefill(row, windows), prefill(row, windows, OTHER, OTHER_TABLE))
    return driver, good, twin.answers(good)


def test_the_right_step_gives_the_right_answer_again_and_again(ready):
    driver, good, right = ready
    assert driver.answers(good) == driver.answers(good) == right


def test_swapped_blocks_are_caught(ready, windows):
    driver, good, right = ready
    for group in range(len(windows)):
        a, b, c = good.tables[group]
        swapped = (a, c, b)  # the window of the last token reaches into b
        changed = tuple(swapped if g == group else t for g, t in enumerate(good.tables))
        assert wrong(driver, good, good.but(tables=changed)) != right


def test_swapped_full_blocks_are_caught(make_driver, row):
    """All of their words are written, so that only the order tells."""
    for windows, swapped in (((None,), (1, 3, 7)), ((7,), (3, 7, 1)), ((None, 7), (1, 3, 7))):
        driver, good = make_driver(*windows), prefill(row, windows, (*TEXT, 11, 12))
        (right,) = driver.answers(good)
        last = good.but(tokens=(12,), start=11)
        for group in range(len(windows)):
            changed = tuple(tuple(b + 10 * g for b in swapped) if g == group else t for g, t in enumerate(last.tables))
            slots = tuple((table[2] * 4 + 3,) for table in last.tables)
            assert wrong(driver, last, last.but(slots=slots)) == [right]
            assert wrong(driver, last, last.but(tables=changed, slots=slots)) != [right], (windows, group)


def test_a_wrong_slot_is_caught(make_driver, ready, row, windows):
    _, good, right = ready
    natural = tuple((table[2] * 4 + 2,) for table in good.tables)
    for group in range(len(windows)):
        driver = make_driver(*windows)
        driver.hidden(prefill(row, windows))
        slots = tuple((slot[0] + (g == group),) for g, slot in enumerate(natural))
        assert wrong(driver, good, good.but(slots=slots)) != right
        assert wrong(driver, good, good.but(slots=natural)) == right


def test_a_slot_of_another_request_is_caught_there(ready, row, windows):
    driver, good, _ = ready
    victim = decode(row, windows, token=12, table=OTHER_TABLE)
    (right,) = driver.answers(victim)
    driver.hidden(victim)
    for group in range(len(windows)):
        theirs = victim.tables[group][2] * 4 + 1  # position 9, which the victim's window sees
        slots = [(t[2] * 4 + 2,) for t in good.tables]
        slots[group] = (theirs,)
        wrong(driver, good, good.but(slots=tuple(slots)))
        assert wrong(driver, victim, victim) != [right]
        driver.hidden(prefill(row, windows, OTHER, OTHER_TABLE))


def test_a_shifted_position_is_caught(ready):
    driver, good, right = ready
    for shift in (-1, 1):
        assert wrong(driver, good, good.but(positions=(good.start + shift,))) != right


def test_another_rows_table_is_caught(ready, row, windows):
    driver, good, right = ready
    assert wrong(driver, good, good.but(tables=decode(row, windows, table=OTHER_TABLE).tables)) != right


def test_a_stale_token_is_caught(ready):
    driver, good, right = ready
    assert wrong(driver, good, good.but(tokens=(12,))) != right


def test_a_wrong_length_is_caught(ready):
    driver, good, right = ready
    for length in (good.end - 1, good.end + 1):
        assert wrong(driver, good, good.but(length=length)) != right


def test_swapped_rows_of_one_step_are_caught(ready, row, windows):
    driver, good, _ = ready
    other = decode(row, windows, token=12, table=OTHER_TABLE)
    right = driver.answers(good, other)
    swapped = driver.answers(good.but(tables=other.tables), other.but(tables=good.tables))
    assert swapped[0] not in right
    assert swapped[1] not in right


def test_kv_that_nobody_wrote_or_that_was_discarded_is_an_error_with_the_place(make_driver, row):
    driver = make_driver(None)
    with pytest.raises(StepError, match=r"row 0 reads slot 12 of block 3, which was never written"):
        driver.hidden(decode(row, (None,)))
    driver.hidden(prefill(row, (None,), OTHER, OTHER_TABLE), prefill(row, (None,)))
    driver.backend.discard_blocks(driver.kv, 0, np.array([1], dtype=np.int32))
    with pytest.raises(StepError, match=r"row 1 reads slot 4 of block 1, which was discarded"):
        driver.hidden(decode(row, (None,), table=OTHER_TABLE), decode(row, (None,)))


def test_a_discard_before_the_step_has_run_is_seen_by_it(make_driver, row):
    driver = make_driver(None)
    event = driver.backend.event()
    driver.launch(prefill(row, (None,)))
    driver.launch(decode(row, (None,)), event=event)
    driver.launch(decode(row, (None,), start=11), event=(late := driver.backend.event()))
    event.synchronize()
    driver.backend.discard_blocks(driver.kv, 0, np.array([3], dtype=np.int32))  # a step in flight still reads it
    with pytest.raises(StepError, match="discarded"):
        late.synchronize()


def test_impossible_inputs_are_errors(make_driver, row):
    driver, good = make_driver(None), prefill(row, (None,))
    for bad, text in (
        (good.but(tokens=(97, *TEXT[1:])), "new token 0 is 97, which is not in the vocabulary"),
        (good.but(tokens=(*TEXT[:-1], -1)), "new token 9 is -1, which is not in the vocabulary"),
        (good.but(length=9), "shorter than its 10 new tokens"),
        (good.but(slots=((-1, *range(13, 22)),)), "new token 0 writes to slot -1"),
        (good.but(slots=((3, *range(13, 22)),)), "reads slot 12 of block 3, which was never written"),
        (good.but(tables=((3, 1),), slots=(tuple(range(12, 22)),)), "needs block 2 of its table, which has 2 entries"),
        (good.but(tables=((3, 0, 7),), slots=(tuple(range(12, 22)),)), "reads entry 1 of its table"),
    ):
        with pytest.raises(StepError, match=text):
            driver.hidden(bad)


def test_lengths_above_the_hosts_bound_are_an_error(make_driver, row):
    driver = make_driver(None)
    batch = driver.batch([prefill(row, (None,))])
    batch.groups[0].plan.kv_len_upper_R[:] = 9
    with pytest.raises(Exception, match="longer than the host's upper bound"):
        driver.forward.hidden(batch, driver.kv)


def test_two_simulated_layers_see_further_back_than_one(make_driver, row):
    for layers, same in ((1, True), (2, False)):
        answers = []
        for tokens in (TEXT, (*TEXT[:5], 96, *TEXT[6:])):
            driver = make_driver(3, layers=layers)
            answers += driver.answers(prefill(row, (3,), tokens))
        assert (answers[0] == answers[1]) is same, layers


def test_logits_have_a_clear_best_token_that_depends_on_the_hash(make_driver):
    forward = make_driver(None).forward
    hidden = torch.arange(1, 200, dtype=torch.int64)[:, None] * 7919
    logits = forward.logits(hidden)
    assert (logits.shape, logits.dtype) == ((199, 97), torch.float32)
    best = logits.max(-1)
    assert set(best.values.tolist()) == {10.0}
    assert len(set(best.indices.tolist())) > 60
    assert torch.equal(logits, forward.logits(hidden))
    drawn = torch.multinomial(logits.softmax(-1), 1, generator=torch.Generator().manual_seed(0))[:, 0]
    assert 0.2 < float((drawn == best.indices).float().mean()) < 0.9


def test_an_end_token_comes_as_often_as_asked(make_driver):
    forward = make_driver(None, eos_every=5, eos_token=3).forward
    tokens = forward.logits(torch.arange(5000, dtype=torch.int64)[:, None]).argmax(-1)
    assert 0.17 < float((tokens == 3).float().mean()) < 0.25


def say(driver, row, tokens, count):
    """Greedy continuation of `tokens`."""
    tokens = list(tokens)
    table = (tuple(range(1, 39)),)
    hidden = driver.hidden(row(tokens=tuple(tokens), start=0, tables=table))
    for _ in range(count):
        tokens.append(int(driver.forward.logits(hidden[-1:]).argmax()))
        hidden = driver.hidden(row(tokens=(tokens[-1],), start=len(tokens) - 1, tables=table))
    return tokens


def test_a_predictable_text_repeats_itself_and_still_depends_on_everything(make_driver, row):
    text = say(make_driver(None, predictable=12), row, TEXT, 120)
    follows: dict[tuple[int, int], set[int]] = {}
    for place in range(len(TEXT), len(text)):
        follows.setdefault((text[place - 2], text[place - 1]), set()).add(text[place])
    assert len(follows) < 80  # pairs come again
    assert any(len(after) > 1 for after in follows.values())  # and do not always go on alike
    other = say(make_driver(None, predictable=12), row, (96, *TEXT[1:]), 120)
    assert other[1:] != text[1:]
    assert len(set(say(make_driver(None), row, TEXT, 120))) > 50  # without the option nothing repeats
