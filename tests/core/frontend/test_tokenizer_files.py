"""Against transformers' AutoTokenizer on the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from isoinfer.errors import CheckpointError
from isoinfer.frontend.tokenizer import Tokenizer

SHARED = Path(__file__).parents[4] / "shared"
FOLDERS = ("models/tiny-v41-code", "oracles/fixtures/base", "oracles/fixtures/ties")
TEXTS = (
    "",
    " ",
    "Hello world",
    "  leading and trailing  ",
    "1234567890 12 3 ½ ४५",
    "tabs\tand\nnewlines\n\n\n  x\r\n",
    "日本語のテキスト 中文 한국어",
    "emoji 🎉 👩‍👩‍👧‍👦 🇫🇷",
    "naïve café e\u0301 Ünïcödé",
    "def f(x):\n    return x+1  # don't I'll",
    "<s>user\nhi</s>\n<extra>x",
    "\x00\x01 control \ufffd",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A byte-level tokenizer trained here, with a post-processor, and templates in every place."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.enable_truncation(5)
    backend.save(str(tmp_path / "tokenizer.json"))
    _config(
        tmp_path,
        bos_token="<s>",
        eos_token={"__type": "AddedToken", "content": "</s>", "lstrip": False},
        unk_token=None,
    )
    return tmp_path


def _config(folder: Path, **values: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **values}))


def _assert_equal(ours: Tokenizer, theirs: Any, special: tuple[bool, ...] = (True, False)) -> None:
    for text in TEXTS:
        for add in special:
            assert ours.encode(text, add_special_tokens=add) == theirs.encode(text, add_special_tokens=add)
        ids = ours.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.vocab_size == len(theirs)
    assert ours.special_tokens_map == theirs.special_tokens_map


@pytest.mark.parametrize("name", FOLDERS)
def test_shared_tokenizers(name: str) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip(f"no folder {name} beside the project")
    theirs = AutoTokenizer.from_pretrained(SHARED / name)
    _assert_equal(Tokenizer.from_files(SHARED / name), theirs, special=(False,))


def test_shared_tokenizer_that_asks_for_a_start_token() -> None:
    """transformers 5 ignores the request when tokenizer.json has no post-processor; the model was trained with it."""
    if not (SHARED / FOLDERS[0]).is_dir():
        pytest.skip(f"no folder {FOLDERS[0]} beside the project")
    tokenizer = Tokenizer.from_files(SHARED / FOLDERS[0])
    assert tokenizer.encode("def f") == [0, *tokenizer.encode("def f", add_special_tokens=False)]


def test_equals_transformers(folder: Path) -> None:
    tokenizer = Tokenizer.from_files(folder)
    _assert_equal(tokenizer, AutoTokenizer.from_pretrained(folder))
    assert tokenizer.eos_token_ids == (1,)
    assert tokenizer.bos_token == "<s>"
    assert tokenizer.special_ids == {0, 1}


def test_saved_by_transformers_and_read_again(folder: Path, tmp_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    theirs.chat_template = "{{ messages }}"
    theirs.save_pretrained(tmp_path / "again")
    ours = Tokenizer.from_files(tmp_path / "again")
    assert ours.encode("a<extra>b") == theirs.encode("a<extra>b")
    assert ours.decode(ours.encode("a<extra>b")) == "ab"
    assert ours.chat_template == "{{ messages }}"


def test_tokens_named_only_beside_tokenizer_json(folder: Path) -> None:
    decoder = {"400": {"content": "<extra>", "special": False}, "401": {"content": "<turn>", "special": True}}
    _config(folder, bos_token="<s>", eos_token="<turn>", added_tokens_decoder=decoder)
    ours = Tokenizer.from_files(folder)
    size = ours.vocab_size
    theirs = AutoTokenizer.from_pretrained(folder)
    _assert_equal(ours, theirs)
    assert ours.eos_token_ids == (size - 1,)
    assert ours.special_ids == {0, 1, size - 1}


@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_start_and_end_flags_without_post_processor(folder: Path, bos: bool, eos: bool) -> None:
    stored = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**stored, "post_processor": None}))
    _config(folder, bos_token="<s>", eos_token="</s>", add_bos_token=bos, add_eos_token=eos)
    tokenizer = Tokenizer.from_files(folder)
    ids = tokenizer.encode("x", add_special_tokens=False)
    assert tokenizer.encode("x") == [0] * bos + ids + [1] * eos


def test_post_processor_counts_more_than_flags(folder: Path) -> None:
    _config(folder, bos_token="<s>", eos_token="</s>", add_bos_token=False, add_eos_token=True)
    _assert_equal(Tokenizer.from_files(folder), AutoTokenizer.from_pretrained(folder))
    assert Tokenizer.from_files(folder).encode("x")[0] == 0


def test_special_tokens_map_is_a_second_source(folder: Path) -> None:
    _config(folder)
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert Tokenizer.from_files(folder).eos_token_ids == (1,)


def test_template_places(folder: Path) -> None:
    assert Tokenizer.from_files(folder).chat_template is None
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    _config(folder, chat_template=named)
    assert Tokenizer.from_files(folder).chat_templates == {"default": "A", "tool_use": "B"}
    _config(folder, chat_template="C")
    assert Tokenizer.from_files(folder).chat_template == "C"
    (folder / "chat_template.jinja").write_text("D")
    assert Tokenizer.from_files(folder).chat_template == "D"


def test_missing_and_damaged_files(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"Cannot read .*tokenizer_config\.json"):
        Tokenizer.from_files(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"Cannot read .*tokenizer\.json"):
        Tokenizer.from_files(folder)
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_files(tmp_path / "nowhere")
