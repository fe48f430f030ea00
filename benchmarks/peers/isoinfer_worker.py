"""isoinfer as a benchmark worker: MODEL_GGUF [JSON object of LLM's keywords]."""

from __future__ import annotations

import json
import sys
from typing import Any

from worker import serve

from isoinfer import LLM, SamplingParams

OPTIONS: dict[str, Any] = {"backend": "cpu", "max_model_len": 1024, "max_num_seqs": 128}
llm = LLM(sys.argv[1], **OPTIONS | json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))


def generate(prompts: list[list[int]], max_tokens: list[int]) -> int:
    """Greedy, end tokens ignored; nothing is taken from the prefix cache, so that a repeat costs the same."""
    params = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, skip_reading_prefix_cache=True) for n in max_tokens
    ]
    outputs = llm.generate(prompts, params)
    return sum(len(output.outputs[0].token_ids) for output in outputs)


def drafts() -> dict[str, int]:
    """Counts since the start."""
    stats = llm.stats()
    return {"draft_tokens": stats.num_draft_tokens, "accepted_tokens": stats.num_accepted_tokens}


serve(["isoinfer", "torch"], "; ".join(llm.describe()), generate, drafts)
