"""A measurement at start, a few milliseconds long: our linear kernel or oneDNN, on this machine, in this type?

Machines with matrix units (AMX) run oneDNN much faster; others do not. Names do not tell, so we time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from isoinfer.backends.cpu.native_library import NativeLibrary
from isoinfer.backends.cpu.native_ops import make_linear as make_native
from isoinfer.backends.cpu.torch_ops import make_linear as make_torch
from isoinfer.backends.cpu.weights import pack_linear, reorder_onednn
from isoinfer.backends.ops import LinearSpec

INPUTS, OUTPUTS = 1024, 1024
ROWS = (1, 32, 256)
REPEATS = 8
CLEARLY = 1.5
"""Ratio by which oneDNN must win: noise must not decide, since the choice changes the last bits of results."""


def onednn_is_faster(native: NativeLibrary, dtype: str) -> bool:
    """Whether oneDNN clearly wins over decode, batched decode and prefill taken together."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    weight_NK = torch.randn(OUTPUTS, INPUTS, dtype=torch.float32).to(torch_dtype)
    spec = LinearSpec(in_features=INPUTS, out_features=OUTPUTS, bias=False, quant=None, dtype=dtype, out_dtype=dtype)
    ours, theirs = make_native(native, spec), make_torch(spec, deterministic=False)
    packed, reordered = pack_linear(weight_NK, None), reorder_onednn(weight_NK)
    ratio = 1.0
    for rows in ROWS:
        x = torch.randn(rows, INPUTS, dtype=torch.float32).to(torch_dtype)
        our_best, their_best = _best_of_both(partial(ours, x, packed, None), partial(theirs, x, reordered, None))
        ratio *= our_best / their_best
    return ratio > CLEARLY ** len(ROWS)


def _best_of_both(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """The least seconds of each, measured in turn so that a busy moment meets both."""
    best = [float("inf"), float("inf")]
    for repeat in range(REPEATS + 1):
        for index, run in enumerate((first, second)):
            start = time.perf_counter()
            run()
            if repeat:  # the first round warms up
                best[index] = min(best[index], time.perf_counter() - start)
    return best[0], best[1]
