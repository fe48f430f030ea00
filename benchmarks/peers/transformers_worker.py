"""transformers as a benchmark worker: MODEL_FOLDER. Static batches, padded on the left."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM
from worker import serve

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()


def generate(prompts: list[list[int]], max_tokens: list[int]) -> int:
    """Greedy, end tokens ignored; the whole batch runs to the longest answer, only wanted tokens count."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    longest = max(max_tokens)
    with torch.inference_mode():
        model.generate(
            ids, attention_mask=mask, do_sample=False, min_new_tokens=longest, max_new_tokens=longest, pad_token_id=0
        )
    return sum(max_tokens)


serve(["transformers", "torch"], "bfloat16", generate)
