"""What is computed again after a prefix hit, because rings are not cached.

    exact     enough tokens that everything from the hit's end on equals a run without the hit
    bounded   one window, in which and after which nothing before it is visible: an approximation
    off       a hit is a miss

In both the first token that is computed again sees nothing before it in the rings, nor do those after it: that is the
row's floor. Blocks of the hit are read and never written. With a window of W tokens, what a ring layer says
of a token is as in a run without the hit if it is so of the W - 1 tokens before; so each ring layer in turn spoils
W - 1 tokens from the start on, and the last must not spoil any past the hit's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isoinfer.backends.interface import KVSpec

REPLAYS = ("exact", "bounded", "off")


def replay_length(specs: Sequence[KVSpec], mode: str) -> int:
    """Tokens at the end of a hit that are computed again; 0 for a model without rings."""
    assert mode in REPLAYS, mode
    rings = [(len(spec.layers), spec.window) for spec in specs if spec.ring is not None and spec.window is not None]
    if mode == "exact":
        return sum(num_layers * (window - 1) for num_layers, window in rings)
    return max((window for _, window in rings), default=0)
