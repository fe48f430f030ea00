"""Which block of a group holds the contents of a given name."""

from __future__ import annotations

from collections.abc import Iterable


class PrefixCache:
    """Names of published blocks, one block a name and one name a block.

    `keep_tokens`: also keep what each block was published for, so that `verify` can compare.
    """

    def __init__(self, *, keep_tokens: bool) -> None:
        self._block_of: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}
        self._tokens_of: dict[int, bytes] | None = {} if keep_tokens else None

    def __contains__(self, name: bytes) -> bool:
        return name in self._block_of

    def __getitem__(self, name: bytes) -> int:
        return self._block_of[name]

    def publish(self, name: bytes, block: int, tokens: bytes) -> bool:
        """`block` holds what `name` says. False, and nothing changes, if another block does already."""
        if name in self._block_of:
            return False
        assert block not in self._name_of, f"block {block} is published under another name"
        self._block_of[name] = block
        self._name_of[block] = name
        if self._tokens_of is not None:
            self._tokens_of[block] = tokens
        return True

    def forget(self, blocks: Iterable[int]) -> None:
        """The contents of these blocks are gone, published or not."""
        for block in blocks:
            name = self._name_of.pop(block, None)
            if name is None:
                continue
            del self._block_of[name]
            if self._tokens_of is not None:
                del self._tokens_of[block]

    def verify(self, name: bytes, tokens: bytes) -> None:
        """Assert that the block of `name` was published for `tokens`, where tokens are kept."""
        if self._tokens_of is not None:
            block = self._block_of[name]
            assert self._tokens_of[block] == tokens, f"block {block} was published for other tokens"

    def published(self) -> dict[int, bytes]:
        """A copy: block to name."""
        return dict(self._name_of)

    def check(self) -> None:
        """Assert that blocks and names belong together one to one."""
        assert {block: name for name, block in self._block_of.items()} == self._name_of, "names and blocks differ"
        assert len(self._block_of) == len(self._name_of), "two names for one block"
