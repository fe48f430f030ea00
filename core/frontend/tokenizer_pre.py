"""How byte-level BPE tokenizers cut text before merging, by the name that GGUF files use for each way."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from isoinfer.errors import CheckpointError

_CONTRACTION = r"'(?i:[sdmt]|ll|ve|re)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?:{_CONTRACTION})?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?:{_CONTRACTION})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_CJK_CODER = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CJK_V3 = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreSpec:
    """Successive cuts: each pattern isolates its matches in what the ones before left whole.

    `digits`: first cut every digit apart. `whole_words`: a piece that is in the vocabulary is one token,
    without merging. `nfc`: normalise first. `bos`: whether a start token is usual.
    """

    patterns: tuple[str, ...]
    digits: bool = False
    whole_words: bool = False
    nfc: bool = False
    bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = (
            [pre_tokenizers.Digits(individual_digits=True)] if self.digits else []
        )
        steps += [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_LLAMA3_SPEC = PreSpec(patterns=(_LLAMA3,), whole_words=True, bos=True)
_QWEN2_SPEC = PreSpec(patterns=(_QWEN2,), nfc=True)
_DEEPSEEK3_SPEC = PreSpec(patterns=(r"\p{N}{1,3}", _CJK_V3, _DEEPSEEK3))
PRE_SPECS = {
    "default": PreSpec(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreSpec(patterns=(_GPT2,)),
    "smollm": PreSpec(patterns=(_GPT2,), digits=True),
    "llama-bpe": _LLAMA3_SPEC,
    "llama3": _LLAMA3_SPEC,
    "llama-v3": _LLAMA3_SPEC,
    "qwen2": _QWEN2_SPEC,
    "deepseek-r1-qwen": _QWEN2_SPEC,
    "gpt-4o": PreSpec(patterns=(_GPT4O,), whole_words=True),
    "deepseek-coder": PreSpec(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_CODER, r"\p{N}")),
    "deepseek-v3": _DEEPSEEK3_SPEC,
}


def pre_spec(name: str) -> PreSpec:
    """The way called `name`. CheckpointError lists those known: guessing would give wrong tokens silently."""
    if name not in PRE_SPECS:
        raise CheckpointError(
            f"The GGUF file's tokenizer splits text in the unknown way '{name}' (tokenizer.ggml.pre); known are "
            f"{', '.join(sorted(PRE_SPECS))}. Use the model's Hugging Face folder instead."
        )
    return PRE_SPECS[name]
