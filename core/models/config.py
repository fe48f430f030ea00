"""What a decoder model is, as frozen data: sizes, rope, windows and switches, one class for every family.

Not a Hugging Face config: the family modules beside this one read those and produce this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isoinfer.backends.ops.rope_table import RopeParams

RouteKind = Literal["softmax_topk", "topk_softmax"]
Activation = Literal["silu_mul", "swiglu_clipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Sparse feed-forward of the layers in `layers`; all other layers have a dense MLP.

    `route_kind`: "softmax_topk" = softmax over all experts, then take `top_k`; "topk_softmax" = take
    `top_k` logits, then softmax over them. `renormalize`: make the taken weights sum to 1.
    `alpha` and `limit` belong to "swiglu_clipped". `bias`: router and experts have biases.
    """

    layers: tuple[int, ...]
    num_experts: int
    top_k: int
    intermediate_size: int
    route_kind: RouteKind
    renormalize: bool = False
    activation: Activation = "silu_mul"
    alpha: float = 0.0
    limit: float = 0.0
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. `windows[i]`: attention window of layer i in tokens, None = all.

    `max_position`: the longest sequence in tokens that the checkpoint was made for. `sinks`: one extra
    softmax logit per query head. `qk_norm`: RMS norm of every q and k head before rope. `rings`: layers with a
    window keep its KV in rings, not in blocks.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: RopeParams
    windows: tuple[int | None, ...]
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    rings: bool = False
    moe: MoeConfig | None = None

    @property
    def q_size(self) -> int:
        """Columns of q in the merged qkv output."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of k, and of v, in the merged qkv output."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """The distinct windows, in the order of the first layer that has each: one KV group for each. Those with rings
        come last."""
        windows = dict.fromkeys(self.windows)
        return (*(window for window in windows if window not in self.ring_windows), *self.ring_windows)

    @property
    def ring_windows(self) -> tuple[int, ...]:
        """Of the KV groups with rings."""
        return tuple(dict.fromkeys(window for window in self.windows if window is not None and self.rings))

    def moe_at(self, layer: int) -> MoeConfig | None:
        """The sparse feed-forward of `layer`, or None where it is dense."""
        return self.moe if self.moe is not None and layer in self.moe.layers else None
