"""All ops of isoinfer as data. `ALL_OPS` maps each op's name to its declaration."""

from __future__ import annotations

from isoinfer.backends.ops.activation import SILU_MUL, SWIGLU_CLIPPED, ActivationSpec, SwigluClippedSpec
from isoinfer.backends.ops.attention import PAGED_ATTENTION, AttentionSpec
from isoinfer.backends.ops.consume_drafts import CONSUME_DRAFTS, ConsumeSpec
from isoinfer.backends.ops.dtypes import dtype_name, torch_dtype
from isoinfer.backends.ops.embedding import EMBEDDING, EmbeddingSpec
from isoinfer.backends.ops.gather import GATHER_ROWS, GatherSpec
from isoinfer.backends.ops.history import APPEND_HISTORY, HistorySpec
from isoinfer.backends.ops.kv import KV_WRITE, ROPE_KV_WRITE, CanonicalKV, KVWriteSpec, RopeKVWriteSpec
from isoinfer.backends.ops.linear import (
    INT4_GROUP,
    LINEAR,
    DenseWeight,
    Int4Weight,
    Int8Weight,
    LinearSpec,
    quantize_int4,
    quantize_int8,
)
from isoinfer.backends.ops.logits import BIAS_LOGITS, MASK_LOGITS, PENALIZE, LogitsSpec
from isoinfer.backends.ops.logprobs import LOGPROBS, LogprobsSpec
from isoinfer.backends.ops.moe import MOE_EXPERTS, MOE_ROUTE, MoeSpec, RouteSpec
from isoinfer.backends.ops.norm import ADD_RMS_NORM, RMS_NORM, NormSpec
from isoinfer.backends.ops.propose_ngram import PROPOSE_NGRAM, NgramSpec
from isoinfer.backends.ops.reference import bind_reference
from isoinfer.backends.ops.remap import REMAP, REMAP_SLOTS, RemapSlotsSpec, RemapSpec
from isoinfer.backends.ops.rope import ROPE, RopeSpec
from isoinfer.backends.ops.rope_table import RopeParams, rope_table
from isoinfer.backends.ops.sample import ARGMAX, SAMPLE
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample
from isoinfer.backends.ops.verify import VERIFY, VerifySpec
from isoinfer.backends.ops.verify_rejection import VERIFY_REJECTION, RejectionSpec
from isoinfer.backends.ops.window_attention import (
    RING_WRITE,
    WINDOW_ATTENTION,
    RingWriteSpec,
    WindowAttentionSpec,
)

ALL_OPS: dict[str, OpSpec] = {
    op.name: op
    for op in (
        RMS_NORM,
        ADD_RMS_NORM,
        ROPE,
        SILU_MUL,
        SWIGLU_CLIPPED,
        LINEAR,
        EMBEDDING,
        GATHER_ROWS,
        KV_WRITE,
        ROPE_KV_WRITE,
        PAGED_ATTENTION,
        WINDOW_ATTENTION,
        RING_WRITE,
        MOE_ROUTE,
        MOE_EXPERTS,
        PENALIZE,
        BIAS_LOGITS,
        MASK_LOGITS,
        ARGMAX,
        SAMPLE,
        LOGPROBS,
        REMAP,
        REMAP_SLOTS,
        VERIFY,
        VERIFY_REJECTION,
        APPEND_HISTORY,
        PROPOSE_NGRAM,
        CONSUME_DRAFTS,
    )
}

__all__ = [
    "ADD_RMS_NORM",
    "ALL_OPS",
    "APPEND_HISTORY",
    "ARGMAX",
    "BIAS_LOGITS",
    "CONSUME_DRAFTS",
    "EMBEDDING",
    "GATHER_ROWS",
    "INT4_GROUP",
    "KV_WRITE",
    "LINEAR",
    "LOGPROBS",
    "MASK_LOGITS",
    "MOE_EXPERTS",
    "MOE_ROUTE",
    "PAGED_ATTENTION",
    "PENALIZE",
    "PROPOSE_NGRAM",
    "REMAP",
    "REMAP_SLOTS",
    "RING_WRITE",
    "RMS_NORM",
    "ROPE",
    "ROPE_KV_WRITE",
    "SAMPLE",
    "SILU_MUL",
    "SWIGLU_CLIPPED",
    "VERIFY",
    "VERIFY_REJECTION",
    "WINDOW_ATTENTION",
    "ActivationSpec",
    "AttentionSpec",
    "CanonicalKV",
    "ConsumeSpec",
    "DenseWeight",
    "EmbeddingSpec",
    "ErrorModel",
    "GatherSpec",
    "HistorySpec",
    "Int4Weight",
    "Int8Weight",
    "KVWriteSpec",
    "LinearSpec",
    "LogitsSpec",
    "LogprobsSpec",
    "MoeSpec",
    "NgramSpec",
    "NormSpec",
    "OpSpec",
    "RejectionSpec",
    "RemapSlotsSpec",
    "RemapSpec",
    "RingWriteSpec",
    "RopeKVWriteSpec",
    "RopeParams",
    "RopeSpec",
    "RouteSpec",
    "Sample",
    "SwigluClippedSpec",
    "VerifySpec",
    "WindowAttentionSpec",
    "bind_reference",
    "dtype_name",
    "quantize_int4",
    "quantize_int8",
    "rope_table",
    "torch_dtype",
]
