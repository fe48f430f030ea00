"""Compares bits of rows under Triton's interpreter: alone, in batches, at other places, and with a prompt cut up.

`python bits.py kernels_cuda|kernels_ascend` with TRITON_INTERPRET=1 prints what differs, by op, as JSON. The backend is
in its `--deterministic` form.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from isoinfer.backends.interface import Backend
from isoinfer.backends.ops import (
    LINEAR,
    MOE_EXPERTS,
    MOE_ROUTE,
    PAGED_ATTENTION,
    AttentionSpec,
    CanonicalKV,
    DenseWeight,
    LinearSpec,
    MoeSpec,
    RouteSpec,
    torch_dtype,
)
from isoinfer.backends.ops.paging import PagedRow, make_batch, make_kv
from isoinfer.conformance.interpreted import interpreted_ascend, interpreted_cuda, products_by_row

SLICES = ((0, 1), (5, 12), (3, 36), (69, 70))
ROWS = 70
LENGTH, CUTS = 100, ((0, 1, 2, 66, 67, 100), (0, 64, 99, 100))
"""A request and the places where its prompt is cut: decode steps, tiles and blocks that are full or not."""
ATTENTION: dict[str, dict[str, Any]] = {
    "full": {"dtype": "float32"},
    "window": {"window": 37, "dtype": "float32"},
    "softcap": {"softcap": 20.0, "dtype": "float16"},
    "sinks-window": {"window": 70, "has_sinks": True, "dtype": "float16"},
}
"""Tiles are narrow in float32, and come through descriptors in float16."""


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Normal numbers in float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def sliced(run: Callable[..., torch.Tensor], *rows_first: torch.Tensor) -> Iterator[str]:
    """The slices of the rows whose results are not those of all rows."""
    whole = run(*rows_first)
    for first, end in SLICES:
        if not same(run(*(arg[first:end] for arg in rows_first)), whole[first:end]):
            yield f"rows {first} to {end} alone"


def linear(backend: Backend) -> Iterator[str]:
    for inputs, outputs in ((208, 80), (99, 33)):
        spec = LinearSpec(
            in_features=inputs, out_features=outputs, bias=True, quant=None, dtype="float32", out_dtype="float32"
        )
        product = backend.bind(LINEAR, spec)
        weight, bias_N = DenseWeight(normal(outputs, inputs, seed=1)), normal(outputs, seed=2)
        for problem in sliced(lambda x: product(x, weight, bias_N), normal(ROWS, inputs, seed=3)):  # noqa: B023
            yield f"{inputs} inputs: {problem}"


def moe(backend: Backend) -> Iterator[str]:
    E, X, H, width = 4, 2, 96, 80
    route = backend.bind(
        MOE_ROUTE, RouteSpec(num_experts=E, top_k=X, kind="softmax_topk", renormalize=True, dtype="float32")
    )
    spec = MoeSpec(
        num_experts=E,
        top_k=X,
        hidden_size=H,
        intermediate_size=width,
        activation="silu_mul",
        alpha=0.0,
        limit=0.0,
        bias=False,
        dtype="float32",
    )
    experts = backend.bind(MOE_EXPERTS, spec)
    w13, w2 = DenseWeight(normal(E, 2 * width, H, seed=1)), DenseWeight(normal(E, H, width, seed=2))

    def run(x_TH: torch.Tensor, logits_TE: torch.Tensor) -> torch.Tensor:
        out_TH: torch.Tensor = experts(x_TH, *route(logits_TE), w13, w2, None, None)
        return out_TH

    yield from sliced(run, normal(ROWS, H, seed=3), normal(ROWS, E, seed=4))


def attention(backend: Backend, labels: Sequence[str] = tuple(ATTENTION)) -> Iterator[str]:
    for label in labels:
        fields = {"window": None, "softcap": None, "has_sinks": False} | ATTENTION[label]
        spec = AttentionSpec(num_heads=3, num_kv_heads=1, head_dim=32, scale=0.2, block_size=64, **fields)
        attend = Request(backend, spec)
        whole = attend((0, LENGTH))
        for cuts in CUTS:
            if not same(torch.cat([attend(part) for part in pairwise(cuts)]), whole):
                yield f"{label}: cut at {cuts}"


class Request:
    """A request's attention in steps. Beside it runs another, after it in even steps and before it in odd ones."""

    def __init__(self, backend: Backend, spec: AttentionSpec) -> None:
        self._backend, self._spec = backend, spec
        self._attend = backend.bind(PAGED_ATTENTION, spec)
        N, K, D, dtype = spec.num_heads, spec.num_kv_heads, spec.head_dim, torch_dtype(spec.dtype)
        self._rows = [PagedRow(num_queries=LENGTH, length=LENGTH), PagedRow(num_queries=9, length=70)]
        self._batch = make_batch(self._rows, spec.block_size, torch.Generator().manual_seed(5))
        self._kv = make_kv(self._rows, self._batch, (K, D), dtype, torch.Generator().manual_seed(6))
        self._q_TND = (3 * normal(LENGTH + 9, N, D, seed=7)).to(dtype)
        self._sinks_N = normal(N, seed=8).to(dtype) if spec.has_sinks else None

    def __call__(self, part: tuple[int, int]) -> torch.Tensor:
        """out_TND of the queries from `part[0]` to before `part[1]`, when no later K and V exist yet."""
        first, end = part
        order = [0, 1] if first % 2 == 0 else [1, 0]
        queries = [torch.arange(first, end), torch.arange(LENGTH, LENGTH + 9)]
        q_TND = self._q_TND[torch.cat([queries[row] for row in order])]
        out_TND = torch.full_like(q_TND, torch.nan)
        stream = self._backend.stream()
        plan = self._backend.plan_attention(self._step(order, first, end), stream)
        self._attend(q_TND, self._written(end), plan, self._sinks_N, out_TND)
        return out_TND[: end - first] if order[0] == 0 else out_TND[9:]

    def _step(self, order: Sequence[int], first: int, end: int) -> Any:
        query_len_R, kv_len_R = self._batch.query_len_R.copy(), self._batch.kv_len_upper_R.copy()
        query_len_R[0], kv_len_R[0] = end - first, end
        return replace(
            self._batch,
            query_len_R=query_len_R[order],
            kv_len_upper_R=kv_len_R[order],
            kv_len_device_R=torch.from_numpy(kv_len_R[order]),
            maybe_kv_len_host_R=kv_len_R[order],
            block_table_RB=self._batch.block_table_RB[order],
        )

    def _written(self, end: int) -> CanonicalKV:
        """The KV as it is before the tokens from `end` on are computed: NaN in their places."""
        k_BSKD, v_BSKD = self._kv.k_BSKD.clone(), self._kv.v_BSKD.clone()
        later = torch.arange(end, LENGTH)
        block = self._batch.block_table_RB[0].long()[later // self._spec.block_size]
        for cache in (k_BSKD, v_BSKD):
            cache[block, later % self._spec.block_size] = torch.nan
        return CanonicalKV(k_BSKD, v_BSKD)


def main(package: str) -> None:
    """Print the problems of each op."""
    torch.set_num_threads(1)
    of_cuda = package == "kernels_cuda"
    backend = interpreted_cuda("sm_90", deterministic=True) if of_cuda else interpreted_ascend("910B")
    with products_by_row():
        found = {
            "linear": list(linear(backend)),
            "moe_experts": list(moe(backend)),
            "paged_attention": list(attention(backend)),
        }
        if of_cuda:
            found["paged_attention without --deterministic"] = list(attention(interpreted_cuda("sm_90"), ["full"]))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
