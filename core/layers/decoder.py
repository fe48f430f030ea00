"""One decoder layer: attention and feed-forward with the residual flow between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from isoinfer.backends.interface import LayerKV
    from isoinfer.layers.attention import Attention
    from isoinfer.layers.batch import ForwardBatch
    from isoinfer.layers.norm import AddRmsNorm


class DecoderLayer:
    """normed_TH -> the next layer's normed_TH; residual_TH is updated in place.

    `next_norm` is the input norm of the layer after this one (the final norm for the last), so that
    every residual addition is fused with the norm that follows it.
    """

    def __init__(
        self,
        attention: Attention,
        post_norm: AddRmsNorm,
        feed_forward: Callable[[torch.Tensor], torch.Tensor],
        next_norm: AddRmsNorm,
    ) -> None:
        self.attention, self.post_norm = attention, post_norm
        self.feed_forward, self.next_norm = feed_forward, next_norm

    def __call__(
        self, normed_TH: torch.Tensor, residual_TH: torch.Tensor, batch: ForwardBatch, kv: LayerKV
    ) -> torch.Tensor:
        attended_TH = self.post_norm(self.attention(normed_TH, batch, kv), residual_TH)
        return self.next_norm(self.feed_forward(attended_TH), residual_TH)
