"""Ops of verifying and proposing drafts, served by our own kernels; made like those of native_ops.py.

Tensors of two dimensions may have strided rows; those of one dimension are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_long, c_void_p
from typing import Any

import torch

from isoinfer.backends.cpu.native_library import NativeLibrary
from isoinfer.backends.ops import ConsumeSpec, HistorySpec, NgramSpec, RejectionSpec, VerifySpec

P, L = c_void_p, c_long
Function = Callable[..., Any]
Verified = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _verified(rows: int, num_drafts: int) -> Verified:
    """Room for token_GJ, accepted_G, rejected_G, last_token_G."""
    shapes = ((rows, num_drafts + 1), (rows,), (rows,), (rows,))
    token_GJ, accepted_G, rejected_G, last_token_G = (torch.empty(shape, dtype=torch.int32) for shape in shapes)
    return token_GJ, accepted_G, rejected_G, last_token_G


def make_verify(lib: NativeLibrary, spec: VerifySpec) -> Function:
    """verify(token_P, input_T, rows_P, start_X) -> (token_GJ, accepted_G, rejected_G, last_token_G)."""
    kernel = lib.function("verify", P, P, P, P, P, P, P, P, L, L)
    num_drafts = spec.num_drafts

    def verify(token_P: torch.Tensor, input_T: torch.Tensor, rows_P: torch.Tensor, start_X: torch.Tensor) -> Verified:
        rows = start_X.shape[0] - 1
        outputs = _verified(rows, num_drafts)
        pointers = [tensor.data_ptr() for tensor in (token_P, input_T, rows_P, start_X, *outputs)]
        kernel(*pointers, rows, num_drafts)
        return outputs

    return verify


def make_verify_rejection(lib: NativeLibrary, spec: RejectionSpec) -> Function:
    """verify_rejection(token_P, input_T, rows_P, start_X, logits_PV, *how places are sampled), like verify."""
    kernel = lib.function("verify_rejection", P, P, P, P, P, L, P, P, P, P, P, P, P, P, P, P, L, L, L)
    num_drafts, vocab = spec.num_drafts, spec.vocab_size

    def verify_rejection(
        token_P: torch.Tensor,
        input_T: torch.Tensor,
        rows_P: torch.Tensor,
        start_X: torch.Tensor,
        logits_PV: torch.Tensor,
        *per_place: torch.Tensor,
    ) -> Verified:
        rows = start_X.shape[0] - 1
        outputs = _verified(rows, num_drafts)
        before = [tensor.data_ptr() for tensor in (token_P, input_T, rows_P, start_X, logits_PV)]
        after = [tensor.data_ptr() for tensor in (*per_place, *outputs)]
        kernel(*before, logits_PV.stride(0), *after, rows, num_drafts, vocab)
        return outputs

    return verify_rejection


def make_append_history(lib: NativeLibrary, spec: HistorySpec) -> Function:
    """append_history(history_SL, slot_G, length_G, token_GJ, count_G)."""
    kernel = lib.function("append_history", P, L, L, P, P, P, L, P, L)

    def append_history(
        history_SL: torch.Tensor,
        slot_G: torch.Tensor,
        length_G: torch.Tensor,
        token_GJ: torch.Tensor,
        count_G: torch.Tensor,
    ) -> None:
        kernel(
            history_SL.data_ptr(),
            history_SL.stride(0),
            history_SL.shape[1],
            slot_G.data_ptr(),
            length_G.data_ptr(),
            token_GJ.data_ptr(),
            token_GJ.stride(0),
            count_G.data_ptr(),
            slot_G.shape[0],
        )

    return append_history


def make_propose_ngram(lib: NativeLibrary, spec: NgramSpec) -> Function:
    """propose_ngram(history_SL, slot_G, length_G) -> (draft_GK, found_G)."""
    kernel = lib.function("propose_ngram", P, L, L, P, P, P, P, L, L, L, L)
    num_drafts, low, high = spec.num_drafts, spec.min_ngram, spec.max_ngram

    def propose_ngram(
        history_SL: torch.Tensor, slot_G: torch.Tensor, length_G: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = slot_G.shape[0]
        draft_GK, found_G = torch.empty((rows, num_drafts), dtype=torch.int32), torch.empty(rows, dtype=torch.int32)
        pointers = [tensor.data_ptr() for tensor in (slot_G, length_G, draft_GK, found_G)]
        history = (history_SL.data_ptr(), history_SL.stride(0), history_SL.shape[1])
        kernel(*history, *pointers, rows, num_drafts, low, high)
        return draft_GK, found_G

    return propose_ngram


def make_consume_drafts(lib: NativeLibrary, spec: ConsumeSpec) -> Function:
    """consume_drafts(predicted_GW, count_G, token_GJ, accepted_G, own_GK, own_found_G) -> (draft_GK, found_G)."""
    kernel = lib.function("consume_drafts", P, L, P, P, L, P, P, L, P, P, P, L, L)
    num_drafts = spec.num_drafts

    def consume_drafts(
        predicted_GW: torch.Tensor,
        count_G: torch.Tensor,
        token_GJ: torch.Tensor,
        accepted_G: torch.Tensor,
        own_GK: torch.Tensor,
        own_found_G: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = count_G.shape[0]
        draft_GK, found_G = torch.empty((rows, num_drafts), dtype=torch.int32), torch.empty(rows, dtype=torch.int32)
        kernel(
            predicted_GW.data_ptr(),
            predicted_GW.stride(0),
            count_G.data_ptr(),
            token_GJ.data_ptr(),
            token_GJ.stride(0),
            accepted_G.data_ptr(),
            own_GK.data_ptr(),
            own_GK.stride(0),
            own_found_G.data_ptr(),
            draft_GK.data_ptr(),
            found_G.data_ptr(),
            rows,
            num_drafts,
        )
        return draft_GK, found_G

    return consume_drafts
