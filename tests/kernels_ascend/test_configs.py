"""`descriptions` yields every configuration that is launched, so that the compile gate sees what runs."""

from __future__ import annotations

import pytest

from isoinfer.backends.ascend.soc import SOCS, Soc
from isoinfer.kernels_ascend import (
    add_rms_norm,
    embedding,
    gather_rows,
    kv_write,
    rms_norm,
    rope,
    rope_kv_write,
    silu_mul,
    swiglu_clipped,
)
from isoinfer.kernels_ascend.rms_norm import RmsNormDesc
from isoinfer.kernels_ascend.rope import RopeDesc
from isoinfer.kernels_ascend.rope_kv_write import RopeKVWriteDesc

CHIPS = pytest.mark.parametrize("soc", [SOCS["910B"], SOCS["950"]], ids=lambda soc: soc.name)


@CHIPS
def test_norm_rows_fit_or_come_in_pieces_and_are_all_listed(soc: Soc) -> None:
    tile = rms_norm.tile_of(soc)
    assert tile == (4096 if soc.name == "910B" else 8192)
    for module, add in ((rms_norm, False), (add_rms_norm, True)):
        listed = {module.case(desc).key for desc in module.descriptions(soc)}  # type: ignore[attr-defined]
        for hidden_size in (1, 16, 64, 65, 101, 128, 576, 1024, 1025, 4096, 4097, 8192, 16384):
            desc = RmsNormDesc(hidden_size=hidden_size, tile=tile, add=add, dtype="bfloat16")
            config = rms_norm.pick_config(desc)
            assert config.whole == (hidden_size <= tile)
            assert config.block_h <= tile
            assert config.block_t * config.block_h <= tile
            assert rms_norm.case(desc).key in listed


@CHIPS
def test_activations_have_one_tile_a_chip(soc: Soc) -> None:
    for module in (silu_mul, swiglu_clipped):
        blocks = {module.pick_config(desc).block_i for desc in module.descriptions(soc)}  # type: ignore[attr-defined]
        assert blocks == {2048 if soc.name == "910B" else 4096}


def test_rotations_fit_and_are_all_listed() -> None:
    alone = {rope.case(desc).key for desc in rope.descriptions()}
    fused = {rope_kv_write.case(desc).key for desc in rope_kv_write.descriptions()}
    for half in range(1, rope.MAX_HEAD_DIM // 2 + 1):
        for interleaved in (False, True):
            desc = RopeDesc(rotary_half=half, interleaved=interleaved, dtype="float16")
            assert rope.pick_config(desc).block_f >= half
            assert rope.case(desc).key in alone
            both = RopeKVWriteDesc(rotary_half=half, interleaved=interleaved, dtype="float16")
            assert rope_kv_write.case(both).key in fused


def test_copies_have_one_configuration() -> None:
    for module in (gather_rows, embedding, kv_write):
        assert len({module.pick_config(desc) for desc in module.descriptions()}) == 1  # type: ignore[attr-defined]
