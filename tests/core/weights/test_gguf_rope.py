from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from isoinfer.errors import CheckpointError
from isoinfer.weights.gguf_rope import llama3_scaling, rope_scaling


def _factors(theta: float, scaling: dict[str, object], head_dim: int = 64) -> list[float]:
    """Default frequencies divided by scaled ones, with transformers' arithmetic."""
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": theta, **scaling},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = theta ** -(torch.arange(0, head_dim, 2) / head_dim)
    return (plain / scaled).tolist()


@pytest.mark.parametrize(("factor", "context", "theta"), [(8.0, 8192, 500000.0), (32.0, 8192, 500000.0)])
def test_llama3_parameters_are_recovered(factor: float, context: int, theta: float) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": context,
    }
    found = llama3_scaling(_factors(theta, scaling), theta)
    assert found is not None
    assert found.pop("factor") == pytest.approx(factor, rel=1e-5)
    assert found == {key: value for key, value in scaling.items() if key != "factor"}


def test_factors_of_one_mean_no_scaling() -> None:
    assert llama3_scaling([1.0] * 32, 10000.0) is None


def test_other_factors_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        llama3_scaling([1.0, 2.0, 3.0, 2.0], 10000.0)


def test_scaling_keys() -> None:
    assert rope_scaling({}, "llama") is None
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert rope_scaling(linear, "llama") == {"rope_type": "linear", "factor": 4.0}
    assert rope_scaling({**linear, "llama.rope.scaling.factor": 1.0}, "llama") is None
    yarn = {
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 32768,
    }
    expected = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert rope_scaling(yarn, "qwen2") == expected
    with pytest.raises(CheckpointError, match="longrope"):
        rope_scaling({"llama.rope.scaling.type": "longrope"}, "llama")
