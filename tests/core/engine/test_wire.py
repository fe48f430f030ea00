from __future__ import annotations

import dataclasses
import json
import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from isoinfer.engine import messages, plan, wire

TYPES = wire.registry(
    messages.AddRequest,
    messages.AbortRequest,
    messages.CoreSampling,
    messages.TokenLogprobs,
    messages.TokenUpdate,
    plan.StepPlan,
    plan.SamplePlan,
    plan.StepResult,
)
some = settings(max_examples=60, deadline=None)
names = st.text(max_size=8)
big_ints = st.integers(-(2**64), 2**64)
int_tuples = st.lists(big_ints, max_size=4).map(tuple)


def arrays(dtype, dims: int) -> st.SearchStrategy:
    return hnp.arrays(dtype, hnp.array_shapes(min_dims=dims, max_dims=dims, min_side=0, max_side=4))


logprobs = st.builds(
    messages.TokenLogprobs,
    logprob_T=arrays(np.float32, 1),
    rank_T=arrays(np.int32, 1),
    top_ids_TX=arrays(np.int32, 2),
    top_logprobs_TX=arrays(np.float32, 2),
)
sampling = st.builds(
    messages.CoreSampling,
    max_tokens=big_ints,
    seed=big_ints,
    temperature=st.floats(),
    bias_values=st.lists(st.floats(), max_size=3).map(tuple),
    bad_words=st.lists(int_tuples, max_size=3).map(tuple),
)
every_message = st.one_of(
    st.builds(messages.AddRequest, request_id=names, prompt_token_ids=arrays(np.int32, 1), sampling=sampling),
    st.builds(messages.AbortRequest, request_id=st.text(st.characters(), max_size=5)),
    st.builds(
        messages.TokenUpdate,
        request_id=names,
        token_ids=int_tuples,
        finish_reason=names,
        stop_token=st.integers(),
        logprobs=st.none() | logprobs,
        prompt_logprobs=st.none() | logprobs,
        error=names,
    ),
)


def example_plans() -> list[object]:
    i32 = np.arange(3, dtype=np.int32)
    ints = {"Int32Array": i32, "Int64Array": i32.astype(np.int64), "Float32Array": i32.astype(np.float32)}
    ints |= {"BoolArray": i32 > 0, "int": 3, "bool": True, "TokenLogprobs | None": None}
    ints["tuple[Int32Array, ...]"] = (i32, i32.reshape(1, 3))
    return [
        cls(**{field.name: ints[field.type] for field in dataclasses.fields(cls)})
        for cls in (plan.StepPlan, plan.SamplePlan, plan.StepResult)
    ]


def same(a: object, b: object) -> bool:
    """Equal in type and in every bit."""
    if type(a) is not type(b):
        return False
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return a.hex() == b.hex()
    return a == b


@some
@given(message=every_message)
def test_messages_come_back_as_they_were(message):
    assert same(wire.decode(wire.encode(message), TYPES), message)


@pytest.mark.parametrize("message", example_plans(), ids=lambda m: type(m).__name__)
def test_plans_come_back_as_they_were(message):
    assert same(wire.decode(wire.encode(message), TYPES), message)


def test_infinities_and_nan_survive():
    values = (math.inf, -math.inf, math.nan, -0.0, 5e-324)
    message = messages.CoreSampling(max_tokens=1, seed=0, bias_values=values)
    assert same(wire.decode(wire.encode(message), TYPES).bias_values, values)


GRID = np.arange(12, dtype=np.int32).reshape(3, 4)


@pytest.mark.parametrize("tokens", [GRID, np.asfortranarray(GRID), GRID[::2], GRID[1:, 1]], ids=["c", "f", "s", "v"])
def test_arrays_of_any_memory_order_come_back_fresh_and_writable(tokens):
    sampling = messages.CoreSampling(max_tokens=1, seed=0)
    message = messages.AddRequest(request_id="r", prompt_token_ids=tokens, sampling=sampling)
    got = wire.decode(wire.encode(message), TYPES).prompt_token_ids
    assert got.tolist() == tokens.tolist()
    assert got.flags.writeable
    assert got.flags.owndata or got.base.flags.owndata


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, np.int32(1), np.float64(1.0), b"x", {1}, np.array([object()]), 1j], ids=repr
)
def test_what_a_message_cannot_hold_is_refused(value):
    with pytest.raises(TypeError, match="A message cannot hold"):
        wire.encode(messages.AbortRequest(request_id=value))


SAMPLE = wire.encode(
    messages.AddRequest(
        request_id="r",
        prompt_token_ids=np.arange(4, dtype=np.int32),
        sampling=messages.CoreSampling(max_tokens=3, seed=1),
    )
)


def test_every_cut_and_every_changed_byte_is_noticed():
    for size in range(len(SAMPLE)):
        with pytest.raises(ValueError, match="Malformed"):
            wire.decode(SAMPLE[:size], TYPES)
        changed = bytearray(SAMPLE)
        changed[size] ^= 0x11
        with pytest.raises(ValueError, match="Malformed"):
            wire.decode(bytes(changed), TYPES)
    with pytest.raises(ValueError, match="Malformed"):
        wire.decode(SAMPLE + b"x", TYPES)


def test_a_class_outside_the_registry_is_refused():
    with pytest.raises(ValueError, match="unknown class 'AddRequest'"):
        wire.decode(SAMPLE, wire.registry(messages.AbortRequest))


def framed(header: object, arrays: bytes = b"", raw: bytes | None = None) -> bytes:
    text = json.dumps(header).encode() if raw is None else raw
    rest = struct.pack("<I", len(text)) + text + arrays
    return wire.MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


@pytest.mark.parametrize(
    "data",
    [
        framed(None, b"left over"),
        framed(None, raw=b"{not json"),
        framed(None, raw=b"\xff\xfe"),
        framed(None, raw=b"[" * 100_000),
        framed({}),
        framed({"f": 1, "g": 2}),
        framed({"f": "zz"}),
        framed({"f": 1}),
        framed({"x": 1}),
        framed(1.5),
        framed({"a": ["<i4", [4]]}, b"short"),
        framed({"a": ["<i4", [-1]]}),
        framed({"a": ["|O", [1]]}, b"12345678"),
        framed({"a": ["nonsense", [1]]}),
        framed({"a": ["<i4", [2**62, 2**62]]}),
        framed({"a": ["<i4", "x"]}),
        framed({"a": 5}),
        framed({"m": ["AbortRequest", []]}),
        framed({"m": ["AbortRequest", ["a", "b"]]}),
        framed({"m": ["AbortRequest"]}),
        framed({"m": [["AbortRequest"], ["a"]]}),
    ],
)
def test_a_well_framed_but_impossible_header_is_a_value_error(data):
    with pytest.raises(ValueError):  # noqa: PT011 - the texts are those of json, numpy and float
        wire.decode(data, TYPES)


def test_a_registry_has_each_name_once():
    with pytest.raises(AssertionError):
        wire.registry(messages.AbortRequest, dataclasses.make_dataclass("AbortRequest", []))
