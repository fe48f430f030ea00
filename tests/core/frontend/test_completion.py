from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.engine.messages import TokenLogprobs, TokenUpdate
from isoinfer.frontend.completion import Completion
from isoinfer.frontend.detokenizer import Detokenizer
from isoinfer.frontend.logprobs import LogprobReader
from isoinfer.sampling_params import SamplingParams

some = settings(max_examples=200, deadline=None)


def make(tokenizer, detokenize=True, **params) -> Completion:
    parsed = SamplingParams(max_tokens=None, detokenize=detokenize, **params)
    detokenizer = Detokenizer(tokenizer, [], parsed.skip_special_tokens) if detokenize else None
    return Completion(0, parsed, detokenizer, LogprobReader(tokenizer))


def logprobs_for(num: int, start: int) -> TokenLogprobs:
    """Token i of the completion has log-probability -(i + 1)."""
    return TokenLogprobs(
        logprob_T=-np.arange(start + 1, start + num + 1, dtype=np.float32),
        rank_T=np.ones(num, np.int32),
        top_ids_TX=np.zeros((num, 0), np.int32),
        top_logprobs_TX=np.zeros((num, 0), np.float32),
    )


def feed(completion: Completion, ids: list[int], sizes: list[int], reason="length", stop_token=-1) -> list:
    """Send ids in updates of the given sizes (cycled), the last with the reason; the output after each."""
    outputs, start = [], 0
    while start < len(ids) and not completion.finished:
        size = sizes[len(outputs) % len(sizes)]
        chunk = tuple(ids[start : start + size])
        last = start + size >= len(ids)
        completion.update(
            TokenUpdate(
                request_id="r",
                token_ids=chunk,
                finish_reason=reason if last else "",
                stop_token=stop_token if last else -1,
                logprobs=logprobs_for(len(chunk), start),
            )
        )
        start += size
        outputs.append(completion.output())
    return outputs


def expected_cut(tokenizer, ids, stops, include, min_tokens):
    """By the definition, for tokens of single characters: text, kept tokens and the stop string, or None."""
    pieces = [tokenizer.decode([i]) for i in ids]
    text = "".join(pieces)
    floor = len("".join(pieces[:min_tokens]))
    for end in range(floor + 1, len(text) + 1):
        found = [s for s in stops if text[floor:end].endswith(s)]
        if found:
            stop = max(found, key=len)
            cut = end if include else end - len(stop)
            starts = [len("".join(pieces[:i])) for i in range(len(ids))]
            kept = sum(start < cut for start in starts)
            return text[:cut], tuple(ids[: max(kept, min_tokens)]), stop
    return text, tuple(ids), None


@some
@given(data=st.data())
def test_text_tokens_and_logprobs_are_cut_at_the_same_place_for_any_split(byte_level, data):
    text = data.draw(st.text("abST é", min_size=1, max_size=14))
    ids = byte_level.encode(text, add_special_tokens=False)
    ids = ids if all("�" not in byte_level.decode([i]) for i in ids) else byte_level.encode("aSTb", False)
    stops = data.draw(st.lists(st.text("abST ", min_size=1, max_size=3), max_size=3))
    include, min_tokens = data.draw(st.booleans()), data.draw(st.integers(0, 3))
    completion = make(byte_level, stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens, logprobs=0)
    outputs = feed(completion, ids, data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    last = outputs[-1]
    text, kept, stop = expected_cut(byte_level, ids, stops, include, min_tokens)
    if len(kept) > len(ids):  # fewer tokens than min_tokens came
        kept = tuple(ids)
    assert (last.text, last.token_ids, last.stop_reason) == (text, kept, stop)
    assert last.finish_reason == ("length" if stop is None else "stop")
    assert [entry[t].logprob for t, entry in zip(kept, last.logprobs, strict=True)] == [
        -(i + 1.0) for i in range(len(kept))
    ]
    assert last.cumulative_logprob == -len(kept) * (len(kept) + 1) / 2
    assert "".join(o.text_delta for o in outputs) == last.text
    assert [token for o in outputs for token in o.new_token_ids] == list(last.token_ids)
    assert [entry for o in outputs for entry in o.new_logprobs] == last.logprobs
    for output in outputs:
        assert last.text.startswith(output.text)
        assert last.token_ids[: len(output.token_ids)] == output.token_ids


def test_a_possible_stop_string_is_held_back_and_then_released(byte_level):
    ids = [byte_level.id(c) for c in "aSTb"]
    outputs = feed(make(byte_level, stop="STOP"), ids, [1])
    assert [o.text_delta for o in outputs] == ["a", "", "", "STb"]
    assert [o.num_new_tokens for o in outputs] == [1, 0, 0, 3]


def test_nothing_is_held_back_where_the_stop_string_is_kept(byte_level):
    ids = [byte_level.id(c) for c in "aSTOPb"]
    outputs = feed(make(byte_level, stop="STOP", include_stop_str_in_output=True), ids, [2])
    assert [o.text_delta for o in outputs] == ["aS", "TO", "P"]
    assert outputs[-1].token_ids == tuple(ids[:5])


def test_a_token_that_is_partly_kept_is_kept(byte_level):
    capital = byte_level.encode(" capital", add_special_tokens=False)
    assert len(capital) == 1
    (output,) = feed(make(byte_level, stop="it"), capital * 2, [2])
    assert (output.text, output.token_ids, output.stop_reason) == (" cap", (capital[0],), "it")


def test_a_stop_string_at_the_start_leaves_nothing(byte_level):
    (output,) = feed(make(byte_level, stop="S", logprobs=0), [byte_level.id("S")], [1])
    assert (output.text, output.token_ids, output.logprobs, output.cumulative_logprob) == ("", (), [], 0.0)


def test_a_stop_string_that_the_end_completes_is_the_reason(byte_level):
    half = byte_level.encode("é", add_special_tokens=False)
    half = half if len(half) > 1 else byte_level.encode("ñ", add_special_tokens=False)
    (output,) = feed(make(byte_level, stop="\ufffd"), half[:1], [1])
    assert (output.text, output.finish_reason, output.stop_reason) == ("", "stop", "\ufffd")


@pytest.mark.parametrize(
    ("include", "skip", "expected"),
    [(False, True, "a"), (False, False, "a"), (True, True, "a"), (True, False, "a</s>")],
)
def test_the_end_token_is_an_id_but_not_text(byte_level, include, skip, expected):
    eos = byte_level.id("</s>")
    completion = make(byte_level, include_stop_str_in_output=include, skip_special_tokens=skip)
    output = feed(completion, [byte_level.id("a"), eos], [1], "stop", eos)[-1]
    assert (output.text, output.token_ids) == (expected, (byte_level.id("a"), eos))
    assert (output.finish_reason, output.stop_reason) == ("stop", None)


@pytest.mark.parametrize(("include", "expected"), [(False, "ab"), (True, "abb")])
def test_a_stop_token_of_the_user_is_the_reason_and_only_the_last_one_has_no_text(byte_level, include, expected):
    a, b = byte_level.id("a"), byte_level.id("b")
    completion = make(byte_level, stop_token_ids=[b], min_tokens=2, include_stop_str_in_output=include)
    output = feed(completion, [a, b, b], [3], "stop", b)[-1]
    assert (output.text, output.token_ids, output.stop_reason) == (expected, (a, b, b), b)


def test_without_text_there_are_only_tokens(byte_level):
    output = feed(make(byte_level, detokenize=False), [5, 6], [1])[-1]
    assert (output.text, output.token_ids, output.logprobs, output.cumulative_logprob) == ("", (5, 6), None, None)


def test_half_a_character_is_flushed_at_the_end(byte_level):
    half = byte_level.encode("ñ", add_special_tokens=False)[:1]
    outputs = feed(make(byte_level), [byte_level.id("a"), *half], [1])
    assert [o.text_delta for o in outputs] == ["a", "\ufffd"]
