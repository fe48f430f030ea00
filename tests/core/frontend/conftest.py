"""Real tokenizers, small enough to build here: a trained byte-level BPE and a sentencepiece-like BPE."""

from __future__ import annotations

import string
from collections.abc import Sequence

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from isoinfer.frontend.tokenizer import Tokenizer
from isoinfer.frontend.tokenizer_parts import TokenizerParts, add_around

CORPUS = [
    "The capital of France is Paris. What is the capital of Germany?",
    "def forward(self, x): return self.norm(x) + x  # naïve café déjà vu",
    "日本語のテキスト and 한국어 text, emoji 😀😃 and 👩‍👩‍👧 families",
    "STOP stop END end\n\nUser: hello\nAssistant: hi there, how are you?",
]
SPECIALS = ["<s>", "</s>", "<|user|>"]


class SmallTokenizer(Tokenizer):
    """Our tokenizer around a `tokenizers` object made here. Counts the ids it decodes."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        eos = (backend.token_to_id("</s>"),)
        super().__init__(TokenizerParts(backend=backend, special_tokens={}, eos_token_ids=eos, chat_templates={}))
        self.id = backend.token_to_id
        self.num_decoded = 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(ids)
        return super().decode(ids, skip_special_tokens)


@pytest.fixture(scope="session")
def byte_level() -> SmallTokenizer:
    """Byte-level BPE: any byte sequence is possible, tokens may hold parts of characters."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    add_around(inner, "<s>", None)
    return SmallTokenizer(inner)


@pytest.fixture(scope="session")
def sentencepiece() -> SmallTokenizer:
    """BPE as Llama 2 has it: a word's token holds the space before it, unknown characters become byte tokens."""
    pieces = ["▁", *string.ascii_letters, *",.!?:", "he", "ll", "hell", "hello", "▁hello", "▁w", "▁wo"]
    vocab = {token: i for i, token in enumerate(["<unk>", *SPECIALS, *(f"<0x{i:02X}>" for i in range(256)), *pieces])}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello"), ("▁", "w"), ("▁w", "o")]
    inner = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(SPECIALS)
    add_around(inner, "<s>", None)
    return SmallTokenizer(inner)
