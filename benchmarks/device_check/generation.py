"""Whole models on the device: the CPU's tokens, and the speed of decoding with graphs on and off."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from random_model import MEDIUM, TINY, write_model

from isoinfer import LLM, SamplingParams


def compare_tokens(backend: Any) -> list[dict[str, Any]]:
    """Greedy tokens of tiny random models in float32 on `backend` and on the CPU, request by request."""
    rows = []
    for family in ("llama", "qwen3"):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), family, TINY, torch.float32)
            device, host = _tokens(folder, backend), _tokens(folder, "cpu")
            equal = sum(a == b for a, b in zip(device, host, strict=True))
            rows.append({"model": family, "requests": len(host), "equal": equal})
    return rows


def _tokens(folder: str, backend: Any) -> list[list[int]]:
    prompts = [[1 + (7 * i + j) % 250 for j in range(length)] for i, length in enumerate((70, 3, 20))]
    llm = LLM(folder, backend=backend, dtype="float32", max_model_len=128, kv_memory="32MiB")
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    llm.close()
    return [list(output.outputs[0].token_ids) for output in outputs]


def decode_rates(backend: Any, dtype: str, *, small: bool) -> list[dict[str, Any]]:
    """Output tokens/s of a batch of short prompts, with graphs and without."""
    size, rows, new = (TINY, 2, 4) if small else (MEDIUM, 32, 128)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), "llama", size, getattr(torch, dtype))
        for eager in (False, True):
            llm = LLM(folder, backend=backend, dtype=dtype, max_model_len=512, kv_memory="1GiB", enforce_eager=eager)
            params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
            prompts = [[1 + i, 2, 3, 4] for i in range(rows)]
            llm.generate(prompts, params)
            started = time.perf_counter()
            llm.generate(prompts, params)
            rate = rows * new / (time.perf_counter() - started)
            results.append({"graphs": not eager, "requests": rows, "tokens_per_s": rate})
            llm.close()
    return results
