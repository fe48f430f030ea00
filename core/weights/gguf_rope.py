"""Rotary scaling from GGUF: metadata keys and the `rope_freqs.weight` tensor to Hugging Face's `rope_scaling`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isoinfer.errors import CheckpointError

LLAMA3_LOW, LLAMA3_HIGH = 1.0, 4.0
LLAMA3_CONTEXTS = (8192, 4096, 16384, 32768)
_TOLERANCE = 1e-4


def rope_scaling(metadata: Mapping[str, Any], arch: str) -> dict[str, Any] | None:
    """The `rope_scaling` dict that the `{arch}.rope.scaling.*` keys say, or None. CheckpointError if unknown."""
    prefix = f"{arch}.rope.scaling."
    kind = metadata.get(prefix + "type", "none")
    if kind == "none" or (kind == "linear" and metadata.get(prefix + "factor", 1.0) in (0.0, 1.0)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": metadata[prefix + "factor"]}
    if kind == "yarn":
        return _yarn(metadata, arch, prefix)
    raise CheckpointError(f"The GGUF file asks for rotary scaling '{kind}', which is not supported (linear, yarn).")


def _yarn(metadata: Mapping[str, Any], arch: str, prefix: str) -> dict[str, Any]:
    """YaRN. gpt-oss does not round its correction range; the file does not say so, the model's config does."""
    scaling = {"rope_type": "yarn", "factor": metadata[prefix + "factor"]}
    for key, name in (
        ("original_context_length", "original_max_position_embeddings"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
        ("yarn_attn_factor", "attention_factor"),
    ):
        if prefix + key in metadata:
            scaling[name] = metadata[prefix + key]
    return {**scaling, "truncate": False} if arch == "gpt-oss" else scaling


def llama3_scaling(factors: Sequence[float], theta: float) -> dict[str, Any] | None:
    """The llama3 parameters whose frequency divisors are `factors` (one for each rotary pair), or None if all are 1.

    The file stores only the resulting divisors, so parameters in use are tried and compared.
    CheckpointError if none of them gives these divisors.
    """
    if all(abs(factor - 1.0) < _TOLERANCE for factor in factors):
        return None
    largest = max(factors)
    for context in LLAMA3_CONTEXTS:
        expected = _llama3_factors(len(factors), theta, largest, context)
        if all(abs(a - b) <= _TOLERANCE * b for a, b in zip(factors, expected, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": largest,
                "low_freq_factor": LLAMA3_LOW,
                "high_freq_factor": LLAMA3_HIGH,
                "original_max_position_embeddings": context,
            }
    raise CheckpointError(
        "The GGUF tensor rope_freqs.weight holds rotary factors that are not those of llama3 scaling. "
        "Use the model's Hugging Face folder instead."
    )


def _llama3_factors(count: int, theta: float, factor: float, context: int) -> list[float]:
    factors = []
    for pair in range(count):
        wavelength = 2 * math.pi * theta ** (pair / count)
        smooth = (context / wavelength - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return factors
