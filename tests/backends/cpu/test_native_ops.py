"""Our kernels: a row's bits depend on no other row, no chunking and no number of threads; odd values do no harm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.interface import AttentionBatch, KVSpec
from isoinfer.backends.ops import (
    ADD_RMS_NORM,
    ARGMAX,
    LINEAR,
    LOGPROBS,
    PAGED_ATTENTION,
    SAMPLE,
    AttentionSpec,
    LinearSpec,
    LogitsSpec,
    LogprobsSpec,
    NormSpec,
)

FORMS = [("float32", None), ("float32", "int8"), ("float32", "int4")]
FORMS += [("bfloat16", None), ("bfloat16", "int8"), ("bfloat16", "int4")]
SHAPES = {
    "gqa": {},
    "heads-of-48": {"num_heads": 9, "num_kv_heads": 3, "head_dim": 48},
    "one-kv-head": {"num_heads": 8, "num_kv_heads": 1},
    "window": {"window": 20},
    "softcap": {"softcap": 5.0},
    "sinks-window": {"has_sinks": True, "window": 33},
}
KEYS = 150


@pytest.fixture(autouse=True)
def one_thread_afterwards(open_backend: Any, need_bfloat16: None) -> Iterator[None]:
    """The kernels' team is one for the process."""
    yield
    open_backend()._native.set_threads(1)


def cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(getattr(torch, dtype))


def linear_of(backend: Any, dtype: str, quant: str | None, inputs: int, outputs: int, bias: bool) -> Callable[..., Any]:
    """linear(x) with a random weight."""
    fields = {"in_features": inputs, "out_features": outputs, "bias": bias, "quant": quant}
    fn = backend.bind(LINEAR, LinearSpec(**fields, dtype=dtype, out_dtype=dtype))
    w = torch.randn(outputs, inputs)
    weight = backend.prepare_weight("linear", w if quant else cast(w, dtype), quant)
    b = cast(torch.randn(outputs), dtype) if bias else None
    return lambda x: fn(x, weight, b)


@pytest.mark.parametrize(("dtype", "quant"), FORMS)
@pytest.mark.parametrize(("inputs", "outputs", "bias"), [(64, 96, False), (96, 40, True), (320, 513, False)])
def test_linear_rows_have_the_same_bits_in_every_batch(
    open_backend: Any, dtype: str, quant: str | None, inputs: int, outputs: int, bias: bool
) -> None:
    linear = linear_of(open_backend(dtype=dtype, linear="native"), dtype, quant, inputs, outputs, bias)
    x = cast(torch.randn(200, inputs), dtype)
    alone = torch.cat([linear(x[row : row + 1]) for row in range(200)])
    for rows in (*range(2, 34), 50, 97, 168, 169, 200):
        assert torch.equal(linear(x[:rows]), alone[:rows]), rows
        assert torch.equal(linear(x[-rows:]), alone[-rows:]), rows


@pytest.mark.parametrize(("dtype", "quant"), FORMS)
def test_linear_reads_rows_of_a_wider_tensor(open_backend: Any, dtype: str, quant: str | None) -> None:
    linear = linear_of(open_backend(dtype=dtype, linear="native"), dtype, quant, 64, 70, True)
    wide = cast(torch.randn(9, 200), dtype)
    assert torch.equal(linear(wide[:, 40:104]), linear(wide[:, 40:104].contiguous()))


class Attention:
    """Bound attention over one sequence of KEYS random keys."""

    def __init__(self, backend: Any, dtype: str, fields: dict[str, Any]) -> None:
        base = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "window": None, "softcap": None, "has_sinks": False}
        base |= fields
        self.backend = backend
        static = AttentionSpec(**base, scale=base["head_dim"] ** -0.5, block_size=16, dtype=dtype)
        self.fn = backend.bind(PAGED_ATTENTION, static)
        heads, dim = static.num_kv_heads, static.head_dim
        specs = [KVSpec(name="full", layers=(0,), num_kv_heads=heads, head_dim=dim, dtype=dtype)]
        self.kv = backend.allocate_kv(specs, [12])
        k, v = (torch.randn(12, 16, heads, dim) for _ in "kv")
        backend.import_blocks(self.kv, 0, np.arange(12, dtype=np.int32), k, v)
        self.table_RB = torch.randperm(11).to(torch.int32)[None, :10] + 1
        self.q_TND = cast(2 * torch.randn(KEYS, static.num_heads, dim), dtype)
        self.sinks_N = cast(torch.randn(static.num_heads), dtype) if static.has_sinks else None

    def run(self, *chunks: tuple[int, int]) -> torch.Tensor:
        """Queries [first, end) of each chunk, as rows of one step."""
        lengths, ends = (np.array(x, dtype=np.int32) for x in zip(*((e - f, e) for f, e in chunks), strict=True))
        plan = self.backend.plan_attention(
            AttentionBatch(
                query_len_R=lengths,
                kv_len_upper_R=ends,
                kv_len_device_R=torch.from_numpy(ends.copy()),
                block_table_RB=self.table_RB.repeat(len(chunks), 1),
                block_size=16,
            ),
            self.backend.stream(),
        )
        q = torch.cat([self.q_TND[first:end] for first, end in chunks])
        out = torch.full_like(q, torch.nan)
        self.fn(q, self.kv.layer(0), plan, self.sinks_N, out)
        return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("native", ["on", "off"])
def test_attention_has_the_same_bits_however_a_prompt_is_cut(
    open_backend: Any, dtype: str, shape: str, native: str
) -> None:
    backend = open_backend(dtype=dtype, native=native, deterministic=native == "off")
    attention = Attention(backend, dtype, SHAPES[shape])
    whole = attention.run((0, KEYS))
    assert not whole.isnan().any()
    for size in (1, 2, 3, 5, 7, 16, 33, 64):
        chunks = [(first, min(KEYS, first + size)) for first in range(0, KEYS, size)]
        assert torch.equal(torch.cat([attention.run(chunk) for chunk in chunks]), whole), size
        assert torch.equal(attention.run(*chunks), whole), size


def results_of(backend: Any, seed: int) -> list[torch.Tensor]:
    """Of kernels large enough to be shared out among threads."""
    torch.manual_seed(seed)
    results = [linear_of(backend, "float32", quant, 256, 999, True)(torch.randn(33, 256)) for _, quant in FORMS[:3]]
    results.append(linear_of(backend, "float32", None, 256, 5000, False)(torch.randn(1, 256)))
    results.append(Attention(backend, "float32", {}).run((0, KEYS), (40, 41), (0, 140)))
    norm = backend.bind(ADD_RMS_NORM, NormSpec(hidden_size=512, eps=1e-5, dtype="float32"))
    residual = torch.randn(64, 512)
    results += [norm(torch.randn(64, 512), residual, torch.randn(512)), residual]
    logits = 3 * torch.randn(9, 4000)
    static = LogitsSpec(vocab_size=4000)
    results.append(backend.bind(ARGMAX, static)(logits))
    results.append(sample(backend, logits, top_k=50, top_p=0.9, min_p=0.01))
    results += backend.bind(LOGPROBS, LogprobsSpec(vocab_size=4000, num=5))(logits, results[-1])
    return results


def sample(backend: Any, logits_RV: torch.Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Any:
    rows, vocab = logits_RV.shape
    fn = backend.bind(SAMPLE, LogitsSpec(vocab_size=vocab))
    per_row = (
        torch.full((rows,), 0.8),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.arange(rows, dtype=torch.int64),
        torch.arange(rows, dtype=torch.int32),
    )
    return fn(logits_RV, *per_row)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(open_backend: Any, threads: int) -> None:
    backend = open_backend(linear="native")
    backend._native.set_threads(1)
    expected = results_of(backend, 3)
    backend._native.set_threads(threads)
    for _ in range(5):
        assert all(map(torch.equal, results_of(backend, 3), expected))


def test_kernels_called_from_several_threads_at_once_do_not_meet(open_backend: Any) -> None:
    backend = open_backend(linear="native")
    backend._native.set_threads(2)
    linear = linear_of(backend, "float32", "int8", 256, 999, True)
    attention = Attention(backend, "float32", {})
    x = torch.randn(33, 256)
    expected = (linear(x), attention.run((0, KEYS)))
    wrong: list[int] = []

    def work() -> None:
        for turn in range(20):
            if not (torch.equal(linear(x), expected[0]) and torch.equal(attention.run((0, KEYS)), expected[1])):
                wrong.append(turn)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("settings", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}], ids=str)
def test_sampling_never_leaves_the_vocabulary_whatever_the_logits(
    open_backend: Any, bad: float, settings: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 3000, generator=generator)
    for row, share in enumerate((0.0001, 0.01, 0.3, 0.7, 0.99, 1.0)):
        logits[row, torch.rand(3000, generator=generator) < share] = bad
    for token in (
        sample(open_backend(), logits, **settings),
        open_backend().bind(ARGMAX, LogitsSpec(vocab_size=3000))(logits),
    ):
        assert bool(((token >= 0) & (token < 3000)).all())


def test_a_nan_logit_is_never_drawn_while_others_are_there(open_backend: Any) -> None:
    logits = torch.zeros(50, 1000)
    logits[:, ::2] = torch.nan
    for settings in ({}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}):
        assert bool((sample(open_backend(), logits, **settings) % 2 == 1).all()), settings
