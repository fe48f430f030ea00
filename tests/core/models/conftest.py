"""Tiny random models of transformers, and a harness that runs ours on any provider of ops.

A `binder` is what a run needs from a backend: bind, prepare, KV, plans. Here it is the op references.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from isoinfer.backends.cpu import plugin
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.interface import AttentionBatch, AttentionPlan, KVSpec, RingBatch
from isoinfer.backends.ops.kv import CanonicalKV
from isoinfer.backends.ops.linear import DenseWeight, quantize_int8
from isoinfer.layers.batch import ForwardBatch, GroupInputs
from isoinfer.models.registry import resolve
from isoinfer.weights.loader import load_weights
from isoinfer.weights.open import open_checkpoint

TINY: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
MOE = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "head_dim": 16}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied-biased-wide": (
        "Llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    ),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral-window": ("Mistral", {"sliding_window": 5, "num_key_value_heads": 1}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3-moe": ("Qwen3Moe", {**MOE, "norm_topk_prob": True, "num_hidden_layers": 4, "decoder_sparse_step": 2}),
    "qwen3-moe-dense-first": ("Qwen3Moe", {**MOE, "mlp_only_layers": [0]}),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "head_dim": 16,
            "sliding_window": 5,
            "swiglu_limit": 0.8,
            "swiglu_alpha": 1.3,
            "rope_parameters": {**YARN, "rope_theta": 100.0, "truncate": False},
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A saved tiny model, a prompt and transformers' logits for it."""

    name: str
    path: Path
    oracle: torch.nn.Module

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """transformers' logits [T, V] for one sequence."""
        with torch.no_grad():
            logits: torch.Tensor = self.oracle(torch.tensor([list(ids)])).logits[0]
        return logits


class ReferenceKV:
    """Canonical KV of every layer, filled with NaN: reading what was never written shows."""

    def __init__(self, specs: Sequence[KVSpec], num_blocks: Sequence[int], block_size: int) -> None:
        self._layers: dict[int, CanonicalKV] = {}
        for spec, count in zip(specs, num_blocks, strict=True):
            shape = (count, spec.ring or block_size, spec.num_kv_heads, spec.head_dim)
            for layer in spec.layers:
                k, v = (torch.full(shape, float("nan"), dtype=getattr(torch, spec.dtype)) for _ in "kv")
                self._layers[layer] = CanonicalKV(k_BSKD=k, v_BSKD=v)

    def layer(self, index: int) -> CanonicalKV:
        return self._layers[index]


class ReferenceBinder:
    """The op references as a backend, with blocks of 4 tokens."""

    def block_size(self, specs: Sequence[KVSpec]) -> int:
        return 4

    def bind(self, op: Any, static: Any) -> Callable[..., Any]:
        assert isinstance(static, op.static_type), (op.name, static)
        return functools.partial(op.reference, static)

    def prepare(self, role: str, tensor: torch.Tensor, quant: str | None) -> Any:
        if role == "vector":
            return tensor
        return DenseWeight(tensor) if quant is None else quantize_int8(tensor)

    def allocate_kv(self, specs: Sequence[KVSpec], num_blocks: Sequence[int]) -> ReferenceKV:
        return ReferenceKV(specs, num_blocks, self.block_size(specs))

    def poison(self, kv: ReferenceKV, layer: int, ids_B: np.ndarray) -> None:
        kv.layer(layer).k_BSKD[ids_B] = kv.layer(layer).v_BSKD[ids_B] = float("nan")

    def plan(self, batch: AttentionBatch) -> AttentionBatch:
        return batch

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class BackendBinder:
    """Any backend whose device memory torch on the host can read. One step at a time, outside its streams."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.bind, self.prepare = backend.bind, backend.prepare_weight
        self.allocate_kv = backend.allocate_kv

    def poison(self, kv: Any, layer: int, ids_B: np.ndarray) -> None:
        sides = self.backend.export_blocks(kv, layer, ids_B)
        self.backend.import_blocks(kv, layer, ids_B, *(torch.full_like(side, float("nan")) for side in sides))

    def block_size(self, specs: Sequence[KVSpec]) -> int:
        size: int = self.backend.kv_layout(specs).block_size
        return size

    def plan(self, batch: AttentionBatch) -> AttentionPlan:
        stream = self.backend.stream()
        plan: AttentionPlan = self.backend.plan_attention(batch, stream)
        stream.synchronize()
        return plan

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        placed: torch.Tensor = self.backend.empty(tensor.shape, tensor.dtype)
        stream, event = self.backend.stream(), self.backend.event()
        self.backend.to_device(placed, tensor, stream)
        event.record(stream)
        event.synchronize()
        return placed


class GroupBlocks:
    """One KV group's blocks: a shuffled pool, a table row for each sequence, and what the window leaves goes back.

    Block `nobody` stands in the table wherever a sequence has no block (yet, or any more).
    """

    def __init__(self, spec: KVSpec, num_sequences: int, width: int, block_size: int, seed: int) -> None:
        self.spec, self.size = spec, block_size
        self.num_blocks = num_sequences * width + 1 + seed
        self.nobody, *self.free = np.random.default_rng(seed).permutation(self.num_blocks).tolist()
        self.table_RB = np.full((num_sequences, width), self.nobody, dtype=np.int32)

    def extend(self, row: int, start: int, end: int) -> None:
        """Blocks for the positions from `start` to `end`."""
        for column in range(-(-start // self.size), -(-end // self.size)):
            self.table_RB[row, column] = self.free.pop()

    def give_back(self, row: int, length: int) -> np.ndarray:
        """The blocks that no token from position `length` on sees; the next `extend` takes them first."""
        columns = 0 if self.spec.window is None else max(0, length - self.spec.window + 1) // self.size
        ids_B = self.table_RB[row, :columns]
        ids_B = ids_B[ids_B != self.nobody]
        self.table_RB[row, :columns] = self.nobody
        self.free += ids_B.tolist()
        return ids_B

    def held(self, row: int) -> int:
        return int((self.table_RB[row] != self.nobody).sum())

    def slots(self, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        slots: np.ndarray = self.table_RB[owners, positions // self.size] * self.size + positions % self.size
        return slots


class Session:
    """A built model with a KV cache whose groups hand out blocks on their own. Blocks of nobody are NaN.

    `rings`: its windows are in rings, one a sequence.
    """

    def __init__(
        self,
        binder: Any,
        path: Path,
        num_sequences: int,
        dtype: str = "float32",
        quant: str | None = None,
        rings: bool = False,
    ) -> None:
        self.binder, checkpoint = binder, open_checkpoint(str(path))
        self.model = resolve(checkpoint.config)
        if rings:
            self.model = self.model.with_rings()
        max_positions, specs = self.model.config.max_position, self.model.kv_specs(dtype)
        weights = load_binder_weights(checkpoint, self.model, binder, dtype, quant)
        self.size = binder.block_size(specs)
        self.forward = self.model.build(binder.bind, weights, dtype, self.size, max_positions, binder.place, quant)
        width = -(-max_positions // self.size)
        paged = [spec for spec in specs if spec.ring is None]
        self.groups = [GroupBlocks(spec, num_sequences, width, self.size, seed) for seed, spec in enumerate(paged)]
        self.rings = [spec for spec in specs if spec.ring is not None]
        self.scratch_ring = num_sequences
        counts = [group.num_blocks for group in self.groups] + [num_sequences + 1] * len(self.rings)
        self.kv = binder.allocate_kv(specs, counts)
        for spec, count in zip(specs, counts, strict=True):
            self._poison(spec, np.arange(count, dtype=np.int32))
        self.lengths = [0] * num_sequences

    def step(self, chunks: Mapping[int, Sequence[int]]) -> list[torch.Tensor]:
        """Logits [T, V] of each row's new tokens; `chunks` maps sequence number to token ids."""
        rows, ids = list(chunks), [token for chunk in chunks.values() for token in chunk]
        starts = [self.lengths[row] for row in rows]
        query = np.array([len(chunks[row]) for row in rows], dtype=np.int32)
        positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, query, strict=True)])
        owners = np.repeat(np.array(rows), query)
        for row, start, count in zip(rows, starts, query, strict=True):
            self.lengths[row] += int(count)
            for group in self.groups:
                group.extend(row, start, self.lengths[row])
        batch = ForwardBatch(
            token_ids_T=self._int32(ids),
            positions_T=self._int32(positions),
            groups=tuple(
                GroupInputs(
                    slots_T=self._int32(group.slots(owners, positions)),
                    plan=self.binder.plan(self._attention(rows, query, group)),
                )
                for group in self.groups
            )
            + tuple(self._ring(rows, query, positions, owners, spec) for spec in self.rings),
            num_tokens=len(ids),
        )
        logits_TV = self.forward.logits(self.forward.hidden(batch, self.kv))
        assert logits_TV.dtype == torch.float32
        for group in self.groups:
            for row in rows:
                self._poison(group.spec, group.give_back(row, self.lengths[row]))
        return list(logits_TV.split(query.tolist()))

    def _poison(self, spec: KVSpec, ids_B: np.ndarray) -> None:
        for layer in spec.layers if ids_B.size else ():
            self.binder.poison(self.kv, layer, ids_B)

    def _ring(
        self, rows: list[int], query: np.ndarray, positions: np.ndarray, owners: np.ndarray, spec: KVSpec
    ) -> GroupInputs:
        lengths = np.array([self.lengths[row] for row in rows], dtype=np.int32)
        assert spec.ring is not None
        is_last = positions >= np.repeat(lengths, query) - spec.ring
        ring_T = self._int32(np.where(is_last, owners, self.scratch_ring))
        plan = RingBatch(
            query_len_R=query,
            kv_len_R=self._int32(lengths),
            ring_R=self._int32(rows),
            floor_R=self._int32([0] * len(rows)),
            positions_T=self._int32(positions),
            ring_T=ring_T,
        )
        return GroupInputs(slots_T=ring_T, plan=plan)

    def _attention(self, rows: list[int], query: np.ndarray, group: GroupBlocks) -> AttentionBatch:
        lengths = np.array([self.lengths[row] for row in rows], dtype=np.int32)
        return AttentionBatch(
            query_len_R=query,
            kv_len_upper_R=lengths,
            kv_len_device_R=self._int32(lengths),
            block_table_RB=self._int32(group.table_RB[rows]),
            block_size=self.size,
            maybe_kv_len_host_R=lengths,
        )

    def _int32(self, values: Any) -> torch.Tensor:
        return self.binder.place(torch.as_tensor(np.asarray(values, dtype=np.int32)))


def load_binder_weights(checkpoint: Any, model: Any, binder: Any, dtype: str, quant: str | None) -> Any:
    """The checkpoint's weights in `dtype`, prepared by `binder`."""
    return load_weights(
        checkpoint,
        model.weight_rules(),
        prepare=binder.prepare,
        dtype=getattr(torch, dtype),
        quant=quant,
        ignored=model.ignored_tensors(),
    )


def randomize(model: torch.nn.Module) -> None:
    """Weights large enough that every part of the model moves the logits (the default 0.02 hides mistakes)."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        mean, std = (1.0, 0.2) if "norm" in name else (0.0, 0.15)
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std + mean)


@pytest.fixture(scope="session", params=sorted(CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Every architecture and rope scaling in turn."""
    family, extra = CASES[request.param]
    config = getattr(transformers, f"{family}Config")(**{**TINY, **extra})
    config._attn_implementation = "eager"
    oracle = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    randomize(oracle)
    oracle.tie_weights()
    path = tmp_path_factory.mktemp(request.param)
    oracle.save_pretrained(path)
    return Case(name=request.param, path=path, oracle=oracle)


@pytest.fixture(scope="session")
def cpu_backend() -> Any:
    """The CPU backend as a user gets it, with one thread as tests have."""
    (device,) = plugin.isoinfer_backend_probe()
    return plugin.isoinfer_backend_create(device, BackendConfig(dtype="float32", threads=1))


@pytest.fixture(params=["reference", "cpu"])
def binder(request: pytest.FixtureRequest) -> Any:
    """The provider of ops. Other backends join as further parameters."""
    if request.param == "reference":
        return ReferenceBinder()
    return BackendBinder(request.getfixturevalue(f"{request.param}_backend"))


@pytest.fixture
def open_session(case: Case, binder: Any) -> Callable[..., Session]:
    """A built model of `case` with room for so many sequences, in a dtype and quantisation."""
    return functools.partial(Session, binder, case.path)


@pytest.fixture
def tiny_config() -> dict[str, Any]:
    """A complete config.json of a two-layer Llama, to be changed."""
    config: dict[str, Any] = {**TINY, "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
    del config["num_key_value_heads"]
    return config
