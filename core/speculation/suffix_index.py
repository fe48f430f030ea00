"""Where the tokens of one request ended earlier as they end now: the host's proposer of drafts.

A compact trie of contexts read backwards, at most `max_match` deep: one walk for each token finds the longest suffix
that occurred before and enters the new one. Drafts are what followed there, as in LZ77.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

_ROOT = 0


class SuffixIndex:
    """The tokens of one request, searchable by what they end with.

    A match has `min_match` to `max_match` tokens. `drafts_per_token`: a match of n tokens gives at most
    n * drafts_per_token drafts, so that short ones, which are wrong more often, cost less; 0 for no such limit.

    A child of a node is the number of another node, or ~end for the only context there: the one that ends at `end`.
    """

    __slots__ = ("_child", "_depth", "_end", "_limit", "_match", "_max_match", "_min_match", "_tokens")

    def __init__(self, *, min_match: int = 1, max_match: int = 32, drafts_per_token: int = 0) -> None:
        assert 1 <= min_match <= max_match, (min_match, max_match)
        self._min_match, self._max_match, self._limit = min_match, max_match, drafts_per_token
        self._tokens = array("i")
        self._depth, self._end = array("i", [0]), array("i", [-1])  # of each node; `end`: the latest context below it
        self._child: dict[int, int] = {}  # by node << 32 | token
        self._match = (0, -1)  # of the whole context: its length and the earlier end

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, tokens: Iterable[int]) -> None:
        """Take over the next tokens. At most `max_match` steps a token, a few in usual text."""
        for token in tokens:
            self._tokens.append(token)
            self._match = self._enter(len(self._tokens) - 1)

    def propose(self, num_drafts: int, in_flight: int = 0) -> list[int]:
        """What followed the latest earlier end of the longest suffix that has one: tokens in flight, then the drafts.

        Empty, or all of them: where they reach the end of the context they go on through themselves, as a period does.
        """
        length, end = self._match
        if length < self._min_match:
            return []
        num = in_flight + (min(num_drafts, length * self._limit) if self._limit else num_drafts)
        drafts = self._tokens[end + 1 : end + 1 + num].tolist()
        period = len(self._tokens) - 1 - end
        while len(drafts) < num:
            drafts.append(drafts[-period])
        return drafts

    def _enter(self, end: int) -> tuple[int, int]:
        """Enter the context that ends at `end`. Returns the longest match and its latest earlier end."""
        tokens, children, node, depth, latest = self._tokens, self._child, _ROOT, 0, -1
        while depth < self._max_match and depth <= end:
            key = node << 32 | tokens[end - depth]
            child = children.get(key)
            if child is None:
                children[key] = ~end
                break
            latest, below = (~child, self._max_match) if child < 0 else (self._end[child], self._depth[child])
            shared = self._common(end, latest, depth, min(below, latest + 1))
            if shared < below:
                self._split(key, child, shared, latest, end)
                return shared, latest
            if child < 0:
                children[key] = ~end
                return shared, latest
            self._end[child], node, depth = end, child, below
        return depth, latest

    def _common(self, end: int, other: int, start: int, limit: int) -> int:
        """How many last tokens of two contexts are equal, up to `limit`, of which `start` are known to be."""
        tokens = self._tokens
        if tokens[end - limit + 1 : end - start + 1] == tokens[other - limit + 1 : other - start + 1]:
            return limit
        while tokens[end - start] == tokens[other - start]:
            start += 1
        return start

    def _split(self, key: int, child: int, depth: int, latest: int, end: int) -> None:
        """Put a node at `depth` into the edge to `child`, and the context that ends at `end` beside it."""
        node = len(self._depth)
        self._depth.append(depth)
        self._end.append(end)
        self._child[key] = node
        if depth <= latest:  # the other context goes on
            self._child[node << 32 | self._tokens[latest - depth]] = child
        self._child[node << 32 | self._tokens[end - depth]] = ~end
