"""Every Ascend kernel under Triton's interpreter: the ops' own cases, whole models against the CPU's tokens, and bits.

The backend is the one of `--deterministic`: fused operators refuse, so all that computes is our kernels.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from isoinfer import LLM, SamplingParams
from isoinfer.backends.ascend.providers import kernel_module
from isoinfer.backends.evidence import check_claims
from isoinfer.backends.ops import (
    ALL_OPS,
    ActivationSpec,
    CanonicalKV,
    DenseWeight,
    GatherSpec,
    LinearSpec,
    MoeSpec,
    NormSpec,
    RopeKVWriteSpec,
    RopeSpec,
    RouteSpec,
    Sample,
    dtype_name,
)
from isoinfer.backends.ops.rope import rope_inputs
from isoinfer.conformance.interpreted import interpreted_ascend, products_by_row, require_interpreter
from isoinfer.conformance.op_cases import run_case, run_op_cases

pytestmark = [pytest.mark.gate, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

ROOT = Path(__file__).resolve().parents[2]
DTYPES = (torch.float32, torch.float16)
SERVED = [name for name in ALL_OPS if kernel_module(name) is not None]
REFUSED = {name for name, op in ALL_OPS.items() if name not in SERVED and op.error.kind != "exact"}
"""Torch alone has them, by sums in an order that it chooses by shape."""
TINY = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gpt-oss": ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20}),
}
QUESTIONS = ("The capital of France is", "Two plus two is", "Once upon a time, there was a little")
NEW_TOKENS = 3


def test_the_interpreter_is_on_and_every_op_of_a_model_has_a_kernel() -> None:
    require_interpreter()
    assert {name for name, op in ALL_OPS.items() if op.required} <= {*SERVED}
    check_claims("ascend", "interpreted", {(name, "triton") for name in SERVED})  # each of them is a test below


@pytest.mark.parametrize("name", ALL_OPS)
def test_the_cases_of_the_op_pass(name: str) -> None:
    backend = interpreted_ascend("910B")
    for seed in range(3):
        results = run_op_cases(backend, [ALL_OPS[name]], dtypes=DTYPES, seed=seed)
        results = [result for result in results if "weights here yet" not in result.reason]
        assert results
        if name in REFUSED:
            assert all("which --deterministic rules out" in result.reason for result in results)
        else:
            provider = "triton" if name in SERVED else "torch"
            assert [f"{r.id}: {r.reason}" for r in results if (r.provider, r.status) != (provider, "passed")] == []


def _long_samples(dtype: torch.dtype) -> Iterator[tuple[str, Sample]]:
    """What the ops' own cases lack: rows longer than a tile, more heads than a tile, more rows than cores."""
    gen, name = torch.Generator().manual_seed(5), dtype_name(dtype)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen).to(dtype)

    norm = NormSpec(hidden_size=9001, eps=1e-6, dtype=name)
    yield "rms_norm", Sample(label="long", static=norm, args=(random(3, 9001), random(9001)))
    yield "add_rms_norm", Sample(label="long", static=norm, args=(random(3, 9001), random(3, 9001), random(9001)))
    head = NormSpec(hidden_size=64, eps=1e-6, dtype=name)
    yield "rms_norm", Sample(label="many", static=head, args=(random(2600, 64), random(64)))
    wide = ActivationSpec(intermediate_size=5001, dtype=name)
    yield "silu_mul", Sample(label="long", static=wide, args=(random(2, 10002),))
    rows_R = torch.tensor([3, 0], dtype=torch.int32)
    yield "gather_rows", Sample(label="long", static=GatherSpec(width=9001, dtype=name), args=(random(4, 9001), rows_R))
    q, k, v, positions, table = rope_inputs(gen, dtype, (2, 19, 17, 80), 64)
    spec = RopeSpec(head_dim=80, rotary_dim=64, interleaved=False, dtype=name)
    yield "rope", Sample(label="heads", static=spec, args=(q, k, positions, table))
    static = RopeKVWriteSpec(rope=spec, num_kv_heads=17, head_dim=80, block_size=128, dtype=name)
    kv = CanonicalKV(random(2, 128, 17, 80), random(2, 128, 17, 80))
    slots = torch.tensor([200, 7], dtype=torch.int32)
    yield "rope_kv_write", Sample(label="heads", static=static, args=(q, k, v, positions, table, kv, slots))
    yield "kv_write", Sample(label="heads", static=static.kv_write, args=(k, v, kv, slots))
    for outputs in (100, 1600):  # narrow tiles and wide ones, with an odd end; three tiles of rows
        product = LinearSpec(
            in_features=300, out_features=outputs, bias=True, quant=None, dtype=name, out_dtype="float32"
        )
        weight = DenseWeight(random(outputs, 300))
        yield "linear", Sample(label=str(outputs), static=product, args=(random(130, 300), weight, random(outputs)))
    route = RouteSpec(num_experts=600, top_k=9, kind="softmax_topk", renormalize=True, dtype=name)
    yield "moe_route", Sample(label="many", static=route, args=(random(7, 600),))
    experts = MoeSpec(  # of the last expert two tiles of rows, of the first none
        num_experts=4,
        top_k=2,
        hidden_size=150,
        intermediate_size=140,
        activation="swiglu_clipped",
        alpha=1.7,
        limit=7.0,
        bias=True,
        dtype=name,
    )
    ids = torch.tensor([[3, 1], [2, 3]] * 35, dtype=torch.int32)
    w13, w2 = (DenseWeight(0.1 * random(4, *shape)) for shape in ((280, 150), (150, 140)))
    args = (random(70, 150), random(70, 2).float().softmax(-1), ids, w13, w2, random(4, 280), random(4, 150))
    yield "moe_experts", Sample(label="uneven", static=experts, args=args)


@pytest.mark.parametrize("chip", ["910B", "950"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_does_not_fit_one_tile(chip: str, dtype: torch.dtype) -> None:
    backend = interpreted_ascend(chip)
    for name, sample in _long_samples(dtype):
        result = run_case(backend, ALL_OPS[name], sample, dtype_name(dtype))
        assert (result.provider, result.status) == ("triton", "passed"), f"{result.id}: {result.reason}"


def _save_model(folder: Path, family: str, changes: dict[str, Any]) -> None:
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**(TINY | changes))
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)
    words = {f"w{i}": i for i in range(TINY["vocab_size"])}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))


def _prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(1, TINY["vocab_size"], size=length).tolist() for length in lengths]


def _by_kernels_alone(llm: LLM) -> bool:
    return {row["provider"] for row in llm.explain()} == {"triton"}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_what_it_says_on_the_cpu(name: str, tmp_path: Path) -> None:
    """Greedy tokens in float32: a prompt over two blocks, a short one, and rows that end at different times."""
    _save_model(tmp_path, *MODELS[name])
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 5, 4)]
    answers = []
    for backend in ("cpu", interpreted_ascend("910B")):
        llm = LLM(str(tmp_path), backend=backend, dtype="float32", max_model_len=256, kv_memory="8MiB")
        answers.append([list(output.outputs[0].token_ids) for output in llm.generate(_prompts(140, 5, 64), params)])
    assert _by_kernels_alone(llm)
    assert [len(tokens) for tokens in answers[0]] == [3, 5, 4]
    assert answers[0] == answers[1]


def test_bits_depend_on_no_other_request_and_on_no_chunk(tmp_path: Path) -> None:
    """Log-probabilities in float32: alone, together, and with prompts in chunks of a few tokens."""
    _save_model(tmp_path, *MODELS["gpt-oss"])
    prompts = _prompts(30, 5, 9)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=3, ignore_eos=True, logprobs=2, prompt_logprobs=0)

    def bits(requests: list[list[int]], **settings: Any) -> list[Any]:
        backend = interpreted_ascend("910B")
        llm = LLM(str(tmp_path), backend=backend, dtype="float32", max_model_len=64, kv_memory="1MiB", **settings)
        return [(output.prompt_logprobs, output.outputs[0].logprobs) for output in llm.generate(requests, params)]

    with products_by_row():
        alone = [bits([prompt])[0] for prompt in prompts[:2]]
        assert bits(prompts)[:2] == alone
        assert bits(prompts[::-1], max_num_batched_tokens=7)[1:] == alone[::-1]


def test_smollm2_says_what_it_says_on_the_cpu() -> None:
    """Real text by our kernels alone."""
    command = [sys.executable, str(ROOT / "scripts/demo-model")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip())
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    answers = []
    for backend in ("cpu", interpreted_ascend("910B")):
        llm = LLM(found.stdout.strip(), backend=backend, dtype="float32", max_model_len=128, kv_memory="64MiB")
        answers.append([(o.outputs[0].text, list(o.outputs[0].token_ids)) for o in llm.generate([*QUESTIONS], params)])
    assert _by_kernels_alone(llm)
    print(f"\ninterpreted: {[text for text, _ in answers[1]]}")
    assert "Paris" in answers[1][0][0]
    assert answers[0] == answers[1]
