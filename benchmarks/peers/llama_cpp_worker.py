"""llama.cpp through its Python bindings as a benchmark worker: MODEL_GGUF.

One context with many sequences and continuous batching through the low-level batch interface, since the
bindings' high-level class serves one sequence at a time.
"""

from __future__ import annotations

import ctypes
import os
import sys

import llama_cpp
import numpy as np
from worker import serve

BATCH = 2048
SEQUENCES = 128

llama_cpp.llama_backend_init()
model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), llama_cpp.llama_model_default_params())
settings = llama_cpp.llama_context_default_params()
settings.n_ctx, settings.n_batch, settings.n_ubatch = 64 * 1024, BATCH, 512
settings.n_seq_max, settings.kv_unified = SEQUENCES, True
settings.n_threads = settings.n_threads_batch = len(os.sched_getaffinity(0))
context = llama_cpp.llama_init_from_model(model, settings)
vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))


def decode(entries: list[tuple[int, int, int, bool]]) -> dict[int, int]:
    """Run (token, position, sequence, wants a token) entries; the greedy token of each sequence that wants one."""
    found = {}
    for first in range(0, len(entries), BATCH):
        part = entries[first : first + BATCH]
        batch = llama_cpp.llama_batch_init(len(part), 0, 1)
        batch.n_tokens = len(part)
        for i, (token, position, sequence, wants) in enumerate(part):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wants
        assert llama_cpp.llama_decode(context, batch) == 0, "llama_decode failed"
        for i, (_, _, sequence, wants) in enumerate(part):
            if wants:
                pointer = llama_cpp.llama_get_logits_ith(context, i)
                row = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (vocab_size,))
                found[sequence] = int(row.argmax())
        llama_cpp.llama_batch_free(batch)
    return found


def generate(prompts: list[list[int]], max_tokens: list[int]) -> int:
    """Greedy, end tokens ignored; all prompts first, then one token of every sequence at a time."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    entries = [
        (token, position, sequence, position == len(prompt) - 1)
        for sequence, prompt in enumerate(prompts)
        for position, token in enumerate(prompt)
    ]
    last, made = decode(entries), dict.fromkeys(range(len(prompts)), 1)
    while running := [sequence for sequence in made if made[sequence] < max_tokens[sequence]]:
        step = [(last[s], len(prompts[s]) + made[s] - 1, s, True) for s in running]
        last = decode(step)
        for sequence in running:
            made[sequence] += 1
    return sum(made.values())


serve(["llama-cpp-python"], "the GGUF's own Q4_1 weights", generate)
