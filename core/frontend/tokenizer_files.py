"""A tokenizer from a Hugging Face folder: tokenizer.json and the files beside it.

tokenizer.json alone says how text is split, and its post-processor which tokens go around it;
`add_bos_token` and `add_eos_token` of tokenizer_config.json count where it adds none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from isoinfer.errors import CheckpointError
from isoinfer.frontend.tokenizer_parts import TokenizerParts, add_around

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def parts_from_files(folder: Path) -> TokenizerParts:
    """CheckpointError if tokenizer.json is missing or damaged, or a file beside it is."""
    backend = _backend(folder)
    config = _json(folder / "tokenizer_config.json")
    named = dict(_named_tokens(_json(folder / "special_tokens_map.json"))) | dict(_named_tokens(config))
    special_tokens = {name: token.content for name, token in named.items()}
    _register(backend, config, named)
    if backend.num_special_tokens_to_add(False) == 0:
        before = special_tokens.get("bos_token") if config.get("add_bos_token") else None
        after = special_tokens.get("eos_token") if config.get("add_eos_token") else None
        add_around(backend, before, after)
    eos_id = backend.token_to_id(special_tokens.get("eos_token", ""))
    return TokenizerParts(
        backend=backend,
        special_tokens=special_tokens,
        eos_token_ids=() if eos_id is None else (eos_id,),
        chat_templates=_chat_templates(folder, config),
    )


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json. Download it from where the model came from.")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"Cannot read {path}: {error}. Download the file again.") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}. Download the file again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object. Download the file again.")
    return content


def _named_tokens(source: Mapping[str, Any]) -> Iterator[tuple[str, AddedToken]]:
    extra = source.get("extra_special_tokens")
    for name, value in [*source.items(), *(extra.items() if isinstance(extra, dict) else ())]:
        if (name in _NAMES or (isinstance(extra, dict) and name in extra)) and value is not None:
            yield name, _token(value)


def _token(value: Any, special: bool = True) -> AddedToken:
    """From a text, or from the object with "content" and flags that tokenizer_config.json may hold."""
    if isinstance(value, str):
        return AddedToken(value, special=special, normalized=False)
    flags = {key: bool(value[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in value}
    return AddedToken(value["content"], special=bool(value.get("special", special)), **flags)


def _register(backend: tokenizers.Tokenizer, config: Mapping[str, Any], named: Mapping[str, AddedToken]) -> None:
    """Make the backend know the special tokens that only the files beside tokenizer.json name."""
    listed = sorted((int(key), value) for key, value in config.get("added_tokens_decoder", {}).items())
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    lists = [config.get(key) for key in ("additional_special_tokens", "extra_special_tokens")]
    more = [_token(value) for values in lists if isinstance(values, list) for value in values]
    for token in (*(_token(value, special=False) for _, value in listed), *named.values(), *more):
        if token.content in known:
            continue
        known.add(token.content)
        if token.special:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """A file of its own counts more than the key in tokenizer_config.json."""
    value = config.get("chat_template")
    templates = {"default": value} if isinstance(value, str) else {}
    if isinstance(value, list):
        templates = {entry["name"]: entry["template"] for entry in value}
    files = [("default", folder / "chat_template.jinja")]
    files += [(path.stem, path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    for name, path in files:
        if path.is_file():
            templates[name] = path.read_text(encoding="utf-8")
    return templates
