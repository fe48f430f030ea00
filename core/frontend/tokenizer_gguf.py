"""A tokenizer from the metadata of a GGUF file: byte-level BPE ("gpt2") or sentencepiece BPE ("llama")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from isoinfer.errors import CheckpointError
from isoinfer.frontend.tokenizer_parts import TokenizerParts, add_around
from isoinfer.frontend.tokenizer_pre import pre_spec

_G = "tokenizer.ggml."
_SPACE = "\u2581"
# Files seldom name the token that ends a turn when it is not the one that ends a text. These never mean anything else.
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|return|>", "<|call|>")
_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


class TokenType(IntEnum):
    """What a vocabulary entry is; only those that matter here."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


def parts_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """CheckpointError if the metadata holds no tokenizer, or one of an unknown kind."""
    model, tokens = _need(metadata, "model"), _need(metadata, "tokens")
    if model == "gpt2":
        pre = pre_spec(metadata.get(_G + "pre", "default"))
        backend, default_bos = _byte_level(metadata, tokens), pre.bos
    elif model == "llama":
        backend, default_bos = _sentencepiece(metadata, tokens), True
    else:
        raise CheckpointError(
            f"The GGUF file has a tokenizer of the kind '{model}'; supported are gpt2 (byte-level BPE) and llama "
            "(sentencepiece BPE). Use the model's Hugging Face folder instead."
        )
    _add_tokens(backend, tokens, _types(metadata, tokens))
    names = _special_tokens(metadata, tokens, model)
    before = names.get("bos_token") if metadata.get(_G + "add_bos_token", default_bos) else None
    add_around(backend, before, names.get("eos_token") if metadata.get(_G + "add_eos_token", False) else None)
    return TokenizerParts(
        backend=backend,
        special_tokens=names,
        eos_token_ids=_eos_token_ids(metadata, tokens, names),
        chat_templates=dict(_chat_templates(metadata)),
    )


def _need(metadata: Mapping[str, Any], key: str) -> Any:
    if _G + key not in metadata:
        raise CheckpointError(f"The GGUF file lacks {_G}{key}: it holds no complete tokenizer. Convert it again.")
    return metadata[_G + key]


def _types(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Sequence[int]:
    types: Sequence[int] = metadata.get(_G + "token_type", [TokenType.NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise CheckpointError(f"The GGUF file has {len(tokens)} tokens but {len(types)} token types. Convert it again.")
    return types


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    pre = pre_spec(metadata.get(_G + "pre", "default"))
    merges = [_pair(merge) for merge in _need(metadata, "merges")]
    backend = _bpe(tokens, merges, ignore_merges=pre.whole_words)
    if (normalizer := pre.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    """Sentencepiece merges the adjacent pair whose joined piece scores best: BPE with merges ranked by score."""
    scores, types = _need(metadata, "scores"), _types(metadata, tokens)
    if len(scores) != len(tokens):
        raise CheckpointError(f"The GGUF file has {len(tokens)} tokens but {len(scores)} scores. Convert it again.")
    unknown = tokens[metadata.get(_G + "unknown_token_id", 0)]
    merges = _merges(tokens, scores, types)
    backend = _bpe(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    prefix = metadata.get(_G + "add_space_prefix", True)
    steps = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    backend.decoder = decoders.Sequence(back)
    return backend


def _merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    ids = {token: index for index, token in enumerate(tokens) if types[index] == TokenType.NORMAL}
    ranked = []
    for piece, index in ids.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[index], index, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _bpe(tokens: Sequence[str], merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    vocab = {token: index for index, token in reversed(list(enumerate(tokens)))}
    try:
        return tokenizers.Tokenizer(models.BPE(vocab, merges, **options))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"The GGUF file's tokenizer does not fit together ({error}). Convert it again."
        ) from error


def _add_tokens(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Tokens that are found in text before anything is split: control ones are special, user-defined ones are not."""
    kinds = {TokenType.UNKNOWN, TokenType.CONTROL}
    special = [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k in kinds]
    plain = [
        AddedToken(token, special=False, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == TokenType.USER_DEFINED
    ]
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def _special_tokens(metadata: Mapping[str, Any], tokens: Sequence[str], model: str) -> dict[str, str]:
    defaults = {"bos": 1, "eos": 2, "unknown": 0} if model == "llama" else {}
    names = {}
    for name, key in _NAMES.items():
        index = metadata.get(f"{_G}{key}_token_id", defaults.get(key))
        if index is not None and 0 <= index < len(tokens):
            names[name] = tokens[index]
    return names


def _eos_token_ids(metadata: Mapping[str, Any], tokens: Sequence[str], names: Mapping[str, str]) -> tuple[int, ...]:
    """The declared end of text first, then ends of turns and messages, declared or known by name."""
    declared = [tokens.index(names["eos_token"])] if "eos_token" in names else []
    declared += [metadata[_G + key] for key in ("eot_token_id", "eom_token_id") if _G + key in metadata]
    types = _types(metadata, tokens)
    known = [i for i, token in enumerate(tokens) if types[i] == TokenType.CONTROL and token in _TURN_ENDS]
    return tuple(dict.fromkeys([*declared, *known]))


def _chat_templates(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    key = "tokenizer.chat_template"
    for name, value in metadata.items():
        if name == key:
            yield "default", value
        elif name.startswith(key + "."):
            yield name.removeprefix(key + "."), value
