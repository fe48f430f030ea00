"""What is built from the settings: by whom ops are bound, with what KV, and what goes wrong before it runs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from isoinfer.backends.cpu.backend import CpuBackend
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.engine.builder import BuiltEngine, build_engine
from isoinfer.errors import CheckpointError, StepError, UserError


@pytest.fixture
def build(tiny: SimpleNamespace) -> Callable[..., BuiltEngine]:
    def build_(**settings: object) -> BuiltEngine:
        config = {"model": tiny.path, "backend_config": BackendConfig(dtype="float32", threads=1), **settings}
        return build_engine(EngineConfig(**config))

    return build_


def test_every_op_of_the_forward_and_of_sampling_is_explained(build: Callable[..., BuiltEngine]) -> None:
    built = build(max_model_len=64)
    ops = {row["op"] for row in built.recorder.explain()}
    assert {"embedding", "rms_norm", "add_rms_norm", "rope_kv_write", "paged_attention", "linear", "silu_mul"} <= ops
    assert {"gather_rows", "argmax", "sample", "penalize", "bias_logits", "mask_logits"} <= ops
    assert (built.vocab_size, built.max_model_len) == (96, 64)


def test_the_description_names_model_type_and_kv(build: Callable[..., BuiltEngine]) -> None:
    built = build(quantization="int8", max_model_len=64, scheduler=SchedulerConfig(max_num_seqs=2))
    text = "\n".join(built.description)
    assert "float32, weights int8" in text
    assert "128.0 KiB in blocks of 16 tokens; context 64 tokens" in text
    assert "16 blocks = 256 tokens" in text, "as much as both requests hold, and as much again to cache"
    assert "fcfs, depth 1 (each step settles before the next); prefix cache on" in text


def test_an_unknown_quantization_names_the_known_ones(build: Callable[..., BuiltEngine]) -> None:
    with pytest.raises(UserError, match="no quantization 'fp2'; it has int8, int4"):
        build(quantization="fp2")


def test_a_missing_model_is_found_before_a_backend_is_made(
    build: Callable[..., BuiltEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuBackend, "__init__", lambda *args: pytest.fail("a backend was made"))
    with pytest.raises(CheckpointError):
        build(model="no/such/model")


def test_a_copy_to_the_device_that_fails_is_not_passed_over(
    build: Callable[..., BuiltEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(dst: torch.Tensor, src: torch.Tensor) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("isoinfer.backends.cpu.backend._copy", fail)
    with pytest.raises(StepError, match="no room"):
        build()


def test_rings_need_windows_and_a_backend_that_has_them(build: Callable[..., BuiltEngine]) -> None:
    with pytest.raises(CheckpointError, match="no layer has a window"):
        build(cache=CacheConfig(window_kv="ring"))
    with pytest.raises(UserError, match=r"swa_replay .* is for rings; give window_kv=ring"):
        build(cache=CacheConfig(swa_replay="exact"))
