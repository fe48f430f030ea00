"""Text to token ids and back, on the `tokenizers` library. Sources: a Hugging Face folder or GGUF metadata.

What it is not: incremental (see detokenizer.py) or a renderer of chats (see chat_template.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isoinfer.frontend.tokenizer_files import parts_from_files
from isoinfer.frontend.tokenizer_gguf import parts_from_gguf
from isoinfer.frontend.tokenizer_parts import TokenizerParts

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


class Tokenizer:
    """Immutable after it is made; may be used from several threads."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._backend = parts.backend
        added = self._backend.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self._special_ids = frozenset(index for index, token in added.items() if token.special)
        decoder = self._backend.decoder
        self._decoder_state = "" if decoder is None else json.dumps(json.loads(decoder.__getstate__()))
        self._byte_of = _bytes_by_character()

    @classmethod
    def from_files(cls, folder: str | Path) -> Tokenizer:
        """From a folder with tokenizer.json. CheckpointError if it is missing or damaged."""
        return cls(parts_from_files(Path(folder)))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the keys of a GGUF file (strings as str, arrays as lists). CheckpointError if of an unknown kind."""
        return cls(parts_from_gguf(metadata))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. Special tokens written out in `text` become their ids. `add_special_tokens` adds start and end."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text. Ids beyond the vocabulary give none; bytes that are not UTF-8 give U+FFFD."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for inside a text: its space kept, half a character as it is; b"" if unknown."""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if "ByteLevel" in self._decoder_state:
            known = all(character in self._byte_of for character in piece)
            return bytes(self._byte_of[character] for character in piece) if known else piece.encode()
        match = _BYTE_PIECE.fullmatch(piece) if "ByteFallback" in self._decoder_state else None
        return bytes((int(match[1], 16),)) if match else piece.replace(_SPACE, " ").encode()

    def token_str(self, token_id: int) -> str:
        """`token_bytes` as text; incomplete characters as U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included. A model's embedding may have more rows (padding)."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text or a turn. generation_config.json may name more."""
        return self._parts.eos_token_ids

    @property
    def bos_token(self) -> str | None:
        return self._parts.special_tokens.get("bos_token")

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that `decode` leaves out by default."""
        return self._special_ids

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """Name ("bos_token", "eos_token", ...) to text, as chat templates expect them."""
        return dict(self._parts.special_tokens)

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the default template, if the model brings one."""
        return self._parts.chat_templates.get("default")

    @property
    def chat_templates(self) -> dict[str, str]:
        """All templates by name, such as "default" and "tool_use"."""
        return dict(self._parts.chat_templates)


def _bytes_by_character() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable bytes stand for themselves, the others for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
