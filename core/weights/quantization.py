"""Which weights a quantisation touches: one rule, asked by the loader and by the layers that bind ops."""

from __future__ import annotations


def quant_of(role: str, quant: str | None) -> str | None:
    """The format of a weight of `role` when the model is loaded with `quant`.

    Routers must not flip their choices, and vectors, embeddings and experts have no quantised form. The
    head keeps at least 8 bits: its errors go straight into the choice of tokens.
    """
    if quant is None or role not in ("linear", "head"):
        return None
    return "int8" if role == "head" else quant
