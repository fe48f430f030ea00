"""isoinfer as a benchmark worker: MODEL_GGUF [quantization]."""

from __future__ import annotations

import sys

from worker import serve

from isoinfer import LLM, SamplingParams

quantization = sys.argv[2] if len(sys.argv) > 2 else None
llm = LLM(sys.argv[1], backend="cpu", quantization=quantization, max_model_len=1024, max_num_seqs=128)


def generate(prompts: list[list[int]], max_tokens: list[int]) -> int:
    """Greedy, end tokens ignored."""
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in max_tokens]
    outputs = llm.generate(prompts, params)
    return sum(len(output.outputs[0].token_ids) for output in outputs)


serve(["isoinfer", "torch"], "; ".join(llm.describe()), generate)
