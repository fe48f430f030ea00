"""`descriptions` yields every configuration that `pick_config` can return, so that gates compile what runs."""

from __future__ import annotations

import pytest

from isoinfer.kernels_cuda import (
    attention_decode,
    attention_prefill,
    gather_rows,
    rms_norm,
    rope_kv_write,
    silu_mul,
)
from isoinfer.kernels_cuda.attention_decode import DecodeDesc
from isoinfer.kernels_cuda.attention_prefill import PrefillDesc
from isoinfer.kernels_cuda.paged_attention import MAX_GROUP
from isoinfer.kernels_cuda.rms_norm import RmsNormDesc
from isoinfer.kernels_cuda.rope_kv_write import RopeKVWriteDesc

DTYPES = ("bfloat16", "float16", "float32")


def test_norm_rows_fit_and_are_all_listed() -> None:
    listed = {(rms_norm.pick_config(desc), desc.dtype) for desc in rms_norm.descriptions()}
    for hidden_size in range(16, rms_norm.MAX_HIDDEN + 1, 16):
        config = rms_norm.pick_config(RmsNormDesc(hidden_size=hidden_size, dtype="bfloat16"))
        assert config.block_h >= hidden_size
        assert (config, "bfloat16") in listed
    assert rms_norm.pick_config(RmsNormDesc(hidden_size=64, dtype="float32")).block_t == 16
    assert rms_norm.pick_config(RmsNormDesc(hidden_size=4096, dtype="float32")).block_t == 1


def test_rope_heads_fit_and_are_all_listed() -> None:
    listed = {rope_kv_write.case(desc).key for desc in rope_kv_write.descriptions()}
    for head_dim in range(16, rope_kv_write.MAX_HEAD_DIM + 1, 16):
        desc = RopeKVWriteDesc(head_dim=head_dim, interleaved=True, dtype="float16")
        assert rope_kv_write.pick_config(desc).block_d >= head_dim
        assert rope_kv_write.case(desc).key in listed


@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_tiles_lie_in_one_block_and_are_all_listed(dtype: str) -> None:
    listed = {attention_decode.case(desc).key for desc in attention_decode.descriptions()}
    for head_dim in range(16, 257, 16):
        for group in range(1, 17 if dtype == "float32" else 65):
            desc = DecodeDesc(group=group, head_dim=head_dim, block_size=64, softcap=False, dtype=dtype)
            config = attention_decode.pick_config(desc)
            assert config.block_g >= max(16, group), "a matrix product has at least 16 rows"
            assert config.block_d >= head_dim
            assert 64 % config.block_s == attention_decode.SPLIT % config.block_s == 0
            assert attention_decode.case(desc).key in listed


@pytest.mark.parametrize("sm", [80, 90, 100, 103, 120])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_tiles_lie_in_one_block_and_expect_what_the_chip_has(sm: int, dtype: str) -> None:
    listed = {case.key for case, _ in attention_prefill.cases(sm)}
    for head_dim in range(16, 257, 16):
        desc = PrefillDesc(
            sm=sm, head_dim=head_dim, block_size=64, softcap=False, ordered=head_dim % 32 == 0, dtype=dtype
        )
        config = attention_prefill.pick_config(desc)
        assert config.block_m >= (attention_prefill.MAX_PLAIN_GROUP if dtype == "float32" else MAX_GROUP)
        assert 64 % config.block_s == 0
        assert not config.tma or (sm in (90, 100, 103) and config.block_d == head_dim)
        expected = attention_prefill.expects(desc)
        assert ("tcgen05" in expected) == (sm in (100, 103) and dtype != "float32")
        assert ("wgmma" in expected) == (sm == 90 and dtype != "float32")
        assert {attention_prefill.case(desc, sinks).key for sinks in (False, True)} <= listed


def test_the_others_have_one_configuration() -> None:
    for module in (silu_mul, gather_rows):
        assert len({module.pick_config(desc) for desc in module.descriptions()}) == 1
