"""Attention: merged qkv, optional q/k norm, attending over blocks or rings, output projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from isoinfer.layers.attend import PagedAttend, RingAttend
from isoinfer.layers.linear import Linear
from isoinfer.layers.norm import HeadNorm

if TYPE_CHECKING:
    import torch

    from isoinfer.backends.interface import LayerKV
    from isoinfer.layers.batch import ForwardBatch
    from isoinfer.layers.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """One layer's attention. `kv_group`: index of the KV group that the layer is in. `ring`: that group has rings.

    `window` in tokens, None = all. `norm_eps` matters only with `qk_norm`.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    kv_group: int
    window: int | None
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    norm_eps: float
    sinks: bool
    ring: bool = False


class Attention:
    """x_TH -> out_TH. Writes the new tokens' K and V into `kv`.

    q, k and v stay views of the merged projection's output: their last two dims are contiguous, their
    rows are strided, and the ops accept that.
    """

    def __init__(self, parts: Parts, prefix: str, config: AttentionConfig, cos_sin_PR: torch.Tensor) -> None:
        self.config = config
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.k_start, self.v_start = q_size, q_size + kv_size
        self.qkv = Linear(
            parts,
            f"{prefix}.qkv",
            in_features=config.hidden_size,
            out_features=q_size + 2 * kv_size,
            bias=config.qkv_bias,
        )
        self.o = Linear(parts, f"{prefix}.o", in_features=q_size, out_features=config.hidden_size, bias=config.o_bias)
        self.q_norm = _head_norm(parts, f"{prefix}.q_norm", config, config.num_heads)
        self.k_norm = _head_norm(parts, f"{prefix}.k_norm", config, config.num_kv_heads)
        sinks_N = parts.maybe_vector(f"{prefix}.sinks", config.sinks)
        self.attend = (RingAttend if config.ring else PagedAttend)(parts, config, cos_sin_PR, sinks_N)

    def __call__(self, x_TH: torch.Tensor, batch: ForwardBatch, kv: LayerKV) -> torch.Tensor:
        qkv_TX = self.qkv(x_TH)
        q_TND = self.q_heads(qkv_TX[:, : self.k_start])
        k_TKD = self.k_heads(qkv_TX[:, self.k_start : self.v_start])
        v_TKD = self.kv_heads(qkv_TX[:, self.v_start :])
        return self.o(self.attend(q_TND, k_TKD, v_TKD, batch, kv).flatten(-2))

    def q_heads(self, q_TX: torch.Tensor) -> torch.Tensor:
        """q_TX as q_TND: a view, or normed where the model does so."""
        return q_TX.view(-1, self.config.num_heads, self.config.head_dim) if self.q_norm is None else self.q_norm(q_TX)

    def k_heads(self, k_TX: torch.Tensor) -> torch.Tensor:
        """k_TX as k_TKD: a view, or normed where the model does so."""
        return self.kv_heads(k_TX) if self.k_norm is None else self.k_norm(k_TX)

    def kv_heads(self, x_TX: torch.Tensor) -> torch.Tensor:
        """k or v as [T, K, D], a view."""
        return x_TX.view(-1, self.config.num_kv_heads, self.config.head_dim)


def _head_norm(parts: Parts, name: str, config: AttentionConfig, num_heads: int) -> HeadNorm | None:
    if not config.qk_norm:
        return None
    return HeadNorm(parts, name, num_heads=num_heads, head_dim=config.head_dim, eps=config.norm_eps)
