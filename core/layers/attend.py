"""How one layer's queries meet K and V: over blocks of the paged cache, or over rings.

Both rotate q and k, see to it that K and V are written, and attend. They differ in the order: what is in blocks is
written first; a ring must be read before it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.ops.attention import PAGED_ATTENTION, AttentionSpec
from isoinfer.backends.ops.kv import ROPE_KV_WRITE, RopeKVWriteSpec
from isoinfer.backends.ops.rope import ROPE, RopeSpec
from isoinfer.backends.ops.window_attention import RING_WRITE, WINDOW_ATTENTION, RingWriteSpec, WindowAttentionSpec

if TYPE_CHECKING:
    import torch

    from isoinfer.backends.interface import LayerKV
    from isoinfer.layers.attention import AttentionConfig
    from isoinfer.layers.batch import ForwardBatch
    from isoinfer.layers.parts import Parts


class PagedAttend:
    """q_TND, k_TKD, v_TKD -> out_TND, over K and V in blocks."""

    def __init__(
        self, parts: Parts, config: AttentionConfig, cos_sin_PR: torch.Tensor, sinks_N: torch.Tensor | None
    ) -> None:
        self.kv_group, self.cos_sin_PR, self.sinks_N = config.kv_group, cos_sin_PR, sinks_N
        write = RopeKVWriteSpec(
            rope=_rope(parts, config),
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=parts.block_size,
            dtype=parts.dtype,
        )
        attention = AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            block_size=parts.block_size,
            window=config.window,
            softcap=None,
            has_sinks=config.sinks,
            dtype=parts.dtype,
        )
        self.rope_kv_write = parts.bind(ROPE_KV_WRITE, write)
        self.paged_attention = parts.bind(PAGED_ATTENTION, attention)

    def __call__(
        self, q_TND: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor, batch: ForwardBatch, kv: LayerKV
    ) -> torch.Tensor:
        group = batch.groups[self.kv_group]
        self.rope_kv_write(q_TND, k_TKD, v_TKD, batch.positions_T, self.cos_sin_PR, kv, group.slots_T)
        out_TND = q_TND.new_empty(q_TND.shape)
        self.paged_attention(q_TND, kv, group.plan, self.sinks_N, out_TND)
        return out_TND


class RingAttend:
    """q_TND, k_TKD, v_TKD -> out_TND, over K and V in rings."""

    def __init__(
        self, parts: Parts, config: AttentionConfig, cos_sin_PR: torch.Tensor, sinks_N: torch.Tensor | None
    ) -> None:
        assert config.window is not None, "a ring has a window"
        self.kv_group, self.cos_sin_PR, self.sinks_N = config.kv_group, cos_sin_PR, sinks_N
        attention = WindowAttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            window=config.window,
            has_sinks=config.sinks,
            dtype=parts.dtype,
        )
        write = RingWriteSpec(num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, dtype=parts.dtype)
        self.rope = parts.bind(ROPE, _rope(parts, config))
        self.window_attention = parts.bind(WINDOW_ATTENTION, attention)
        self.ring_write = parts.bind(RING_WRITE, write)

    def __call__(
        self, q_TND: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor, batch: ForwardBatch, kv: LayerKV
    ) -> torch.Tensor:
        plan = batch.groups[self.kv_group].plan
        self.rope(q_TND, k_TKD, batch.positions_T, self.cos_sin_PR)
        out_TND = q_TND.new_empty(q_TND.shape)
        self.window_attention(q_TND, k_TKD, v_TKD, kv, plan, self.sinks_N, out_TND)
        self.ring_write(k_TKD, v_TKD, kv, plan)
        return out_TND


def _rope(parts: Parts, config: AttentionConfig) -> RopeSpec:
    return RopeSpec(head_dim=config.head_dim, rotary_dim=config.rotary_dim, interleaved=False, dtype=parts.dtype)
