"""Runs the sampling and remap kernels of a package under Triton's interpreter, on cases that the ops' samples lack.

`python interpret.py kernels_cuda|kernels_ascend` with TRITON_INTERPRET=1 prints what is wrong, by op, as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from isoinfer.backends.ops import ALL_OPS, LogitsSpec, LogprobsSpec, RemapSlotsSpec, RemapSpec
from isoinfer.backends.ops.spec import Sample
from isoinfer.backends.torch_device.triton_launcher import TritonLauncher
from isoinfer.conformance.arguments import copies, outcome, truth
from isoinfer.conformance.error_model import check

LONG = 2 * 4096 + 137
"""Several blocks of every kernel, and an odd tail."""


def argmax_samples(gen: torch.Generator) -> Iterator[Sample]:
    logits_RV = torch.randn(4, LONG, generator=gen).round()  # many of equal size, in different parts
    logits_RV[1] = -torch.inf
    logits_RV[2, LONG - 1] = 9.0
    logits_RV[3] = 0.0
    logits_RV[3, :9] = -0.0  # equal to the others, and lower
    yield Sample(label="long", static=LogitsSpec(vocab_size=LONG), args=(logits_RV,))


def sample_samples(gen: torch.Generator) -> Iterator[Sample]:
    settings = (  # temperature, top_k, top_p, min_p
        (1.0, 0, 1.0, 0.0),
        (0.7, 50, 0.9, 0.0),
        (1.0, 0, 0.5, 0.0),
        (1.5, 0, 0.95, 0.05),
        (1.0, LONG - 1, 1.0, 0.0),
        (1.0, 3, 0.0, 0.0),
        (1.0, 2, 0.5, 1.5),
        (1.0, 5, 0.5, 0.5),
        (1.0, 2, 1.0, 1e-6),
    )
    columns = (torch.tensor(column) for column in zip(*settings, strict=True))
    temperature_R, top_k_R, top_p_R, min_p_R = columns
    R = len(settings)
    seed_R = torch.randint(-(2**62), 2**62, (R,), generator=gen)
    position_R = torch.arange(R, dtype=torch.int32)
    logits_RV = 3 * torch.randn(R, LONG, generator=gen)
    logits_RV[2] = logits_RV[2].round()  # the border of top-p lies among equal scores, over several blocks
    logits_RV[4, : LONG // 2] = -torch.inf
    logits_RV[7] = -torch.inf
    rest = (temperature_R, top_k_R.to(torch.int32), top_p_R, min_p_R, seed_R, position_R)
    yield Sample(label="long", static=LogitsSpec(vocab_size=LONG), args=(logits_RV, *rest))
    R, V = 4, 5001  # top-p keeps three of six equal tokens, over two blocks; the third is drawn by two rows
    logits_RV = torch.full((R, V), -30.0)
    logits_RV[:, [3, 900, 4500, 4600, 4700, 5000]] = 5.0
    ones_R, zeros_R = torch.ones(R), torch.zeros(R)
    seed_R = torch.arange(R)
    rest = (ones_R, zeros_R.to(torch.int32), 0.45 * ones_R, zeros_R, seed_R, zeros_R.to(torch.int32))
    yield Sample(label="ties", static=LogitsSpec(vocab_size=V), args=(logits_RV, *rest))


def mask_logits_samples(gen: torch.Generator) -> Iterator[Sample]:
    words = -(-LONG // 32)
    mask_RW = torch.randint(-(2**31), 2**31, (2, words), generator=gen).to(torch.int32)
    yield Sample(label="long", static=LogitsSpec(vocab_size=LONG), args=(torch.randn(2, LONG, generator=gen), mask_RW))


def bias_logits_samples(gen: torch.Generator) -> Iterator[Sample]:
    M = 260  # few repeat, and those in different blocks
    entries = (
        torch.randint(0, 3, (M,), generator=gen, dtype=torch.int32),
        torch.randint(0, 3000, (M,), generator=gen, dtype=torch.int32),
        torch.randn(M, generator=gen),
    )
    entries[1][240:] = entries[1][:20]
    entries[0][240:] = entries[0][:20]
    entries[2][::100] = -torch.inf
    yield Sample(label="long", static=LogitsSpec(vocab_size=3000), args=(torch.randn(3, 3000, generator=gen), *entries))


def penalize_samples(gen: torch.Generator) -> Iterator[Sample]:
    L = 700
    history_SL = torch.randint(0, 5000, (3, L), generator=gen, dtype=torch.int32)
    history_SL[1, 600:] = -1
    args = (
        torch.randn(3, 5003, generator=gen),
        history_SL,
        torch.tensor([2, 1, 0], dtype=torch.int32),
        torch.tensor([10, 300, 700], dtype=torch.int32),
        torch.tensor([L, 600, L], dtype=torch.int32),
        torch.tensor([0.5, 0.0, 0.0]),
        torch.tensor([0.25, 0.0, 1.0]),
        torch.tensor([1.0, 1.0, 1.5]),
    )
    yield Sample(label="long", static=LogitsSpec(vocab_size=5003), args=args)


def logprobs_samples(gen: torch.Generator) -> Iterator[Sample]:
    logits_RV = 4 * torch.randn(3, LONG, generator=gen)
    logits_RV[1] = logits_RV[1].round()
    logits_RV[2, : LONG - 10] = -torch.inf
    token_R = torch.tensor([0, 5000, LONG - 1], dtype=torch.int32)
    yield Sample(label="long", static=LogprobsSpec(vocab_size=LONG, num=7), args=(logits_RV, token_R))


def remapped_rows(gen: torch.Generator, num_drafts: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """query_start_X and map_R: every third row is a prompt, the others have 1 to K + 1 tokens."""
    source_R = torch.randperm(rows, generator=gen)
    source_R[::3] = -1
    count_R = torch.where(source_R < 0, 70, torch.randint(1, num_drafts + 2, (rows,), generator=gen))
    query_start_X = torch.cat((torch.zeros(1, dtype=torch.int64), count_R.cumsum(0)))
    return query_start_X.to(torch.int32), source_R.to(torch.int32)


def remap_samples(gen: torch.Generator) -> Iterator[Sample]:
    def random(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=gen, dtype=torch.int32)

    for K, R in ((0, 300), (5, 70), (63, 6)):  # more rows than a program or the cores hold; the most drafts
        query_start_X, map_R = remapped_rows(gen, K, R)
        tokens = int(query_start_X[-1])
        now = (random(999, tokens), 100 + random(99, tokens), 100 + random(99, R), query_start_X, map_R)
        before = (random(999, R), random(K + 1, R), random(999, R, K))
        yield Sample(label=f"long-{K}", static=RemapSpec(num_drafts=K), args=(*now, *before))


def remap_slots_samples(gen: torch.Generator) -> Iterator[Sample]:
    query_start_X, map_R = remapped_rows(gen, 63, 50)  # rows longer than a piece, more rows than cores
    positions_T = torch.randint(0, 640, (int(query_start_X[-1]),), generator=gen, dtype=torch.int32)
    table_RB = torch.randperm(50 * 5, generator=gen).view(50, 5).to(torch.int32)
    slots_T = torch.zeros_like(positions_T)
    args = (slots_T, positions_T, query_start_X, map_R, table_RB)
    yield Sample(label="long", static=RemapSlotsSpec(block_size=128), args=args)


SAMPLES: dict[str, Callable[[torch.Generator], Iterator[Sample]]] = {
    "argmax": argmax_samples,
    "sample": sample_samples,
    "mask_logits": mask_logits_samples,
    "bias_logits": bias_logits_samples,
    "penalize": penalize_samples,
    "logprobs": logprobs_samples,
    "remap": remap_samples,
    "remap_slots": remap_slots_samples,
}
BY_ROW = {
    "argmax": (0,),
    "sample": range(7),
    "mask_logits": (0, 1),
    "penalize": (0, 2, 3, 4, 5, 6, 7),
    "logprobs": (0, 1),
}
"""Arguments that have one entry for each row."""


def problems(name: str, make: Callable[[Any], Callable[..., Any]]) -> Iterator[str]:
    """Wrong numbers; rows that depend on others; views and empty batches that are not served."""
    op = ALL_OPS[name]
    for sample in SAMPLES[name](torch.Generator().manual_seed(1)):
        kernel = make(sample.static)

        def run(*args: Any, kernel: Any = kernel, sample: Sample = sample) -> dict[str, torch.Tensor]:
            return outcome(replace(op, reference=lambda static, *a: kernel(*a)), sample.static, args)

        together = run(*copies(sample.args))
        verdict = check(op, sample.static, sample.args, together, truth(op, sample.static, sample.args))
        if not verdict.passed:
            yield f"{verdict.output}: {verdict.reason} at {verdict.index}"
        turned = run(*(wide(part(arg, by_row, slice(None, None, -1))) for arg, by_row in rows_of(name, sample)))
        back = {key: value.flip(0) for key, value in turned.items()} if name in BY_ROW else turned
        if not equal(together, back):
            yield "rows in another order, as a view of wider ones, give something else"
        if name in BY_ROW:
            none = run(*(part(arg, by_row, slice(0, 0)) for arg, by_row in rows_of(name, sample)))
            if any(tensor.shape[0] for tensor in none.values()):
                yield "no rows give something"


def rows_of(name: str, sample: Sample) -> Iterator[tuple[torch.Tensor, bool]]:
    """Each argument and whether it has one entry for each row."""
    for i, arg in enumerate(copies(sample.args)):
        yield arg, i in BY_ROW.get(name, ())


def wide(arg: torch.Tensor) -> torch.Tensor:
    """The same, as a view of wider rows if it is a matrix."""
    if arg.dim() != 2:
        return arg
    wider = torch.zeros(arg.shape[0], arg.shape[1] + 7, dtype=arg.dtype)
    wider[:, : arg.shape[1]] = arg
    return wider[:, : arg.shape[1]]


def part(arg: torch.Tensor, by_row: bool, rows: slice) -> torch.Tensor:
    """Some rows of an argument that has rows. A step of -1 turns them round."""
    if not by_row:
        return arg
    return arg.flip(0) if rows.step == -1 else arg[rows]


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit by bit."""
    return all(torch.equal(a[key].contiguous().view(torch.int32), b[key].contiguous().view(torch.int32)) for key in a)


def main(package: str) -> None:
    """Print the problems of each op that `package` has a kernel for."""
    torch.set_num_threads(1)
    options: dict[str, Any] = {"launcher": TritonLauncher()}
    if package == "kernels_ascend":
        from isoinfer.backends.ascend.soc import SOCS

        options["soc"] = replace(SOCS["910B"], cube_cores=3, vector_cores=5)  # fewer run idle
    found = {}
    for name in SAMPLES:
        module = importlib.import_module(f"isoinfer.{package}.{name}")
        found[name] = list(problems(name, partial(getattr(module, f"make_{name}"), **options)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
