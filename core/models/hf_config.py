"""Reads values out of a Hugging Face config and says clearly what is missing or impossible.

It knows how configs are written (transformers 4 and 5 differ in rope), not what a family means by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isoinfer.backends.ops.rope_table import RopeKind, RopeParams
from isoinfer.errors import CheckpointError
from isoinfer.models.config import ModelConfig

_ROPE_KINDS: dict[str, RopeKind] = {
    "default": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "llama3": "llama3",
}


class HfConfig:
    """One config.json. A key whose value is null counts as absent."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {key: value for key, value in config.items() if value is not None}
        self.architecture = str(self._config.get("architectures", ["model"])[0])

    def get(self, key: str, default: Any) -> Any:
        """The value of `key`, or `default` where it is absent or null."""
        return self._config.get(key, default)

    def integer(self, *keys: str, default: int | None = None) -> int:
        """A positive whole number under the first of `keys` that is present. CheckpointError if none or not one."""
        value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{keys[0]!r} must be a positive whole number, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number. CheckpointError if absent without a default, or not a number."""
        return as_number(self, key, self._first((key,), default))

    def flag(self, key: str, default: bool) -> bool:
        """True or false. CheckpointError for anything else."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key!r} must be true or false, not {value!r}")
        return value

    def error(self, what: str) -> CheckpointError:
        """A CheckpointError about this config."""
        return CheckpointError(f"config of {self.architecture}: {what}. Check config.json (or the GGUF metadata).")

    def _first(self, keys: tuple[str, ...], default: Any) -> Any:
        for key in keys:
            if key in self._config:
                return self._config[key]
        if default is None:
            raise self.error(f"{keys[0]!r} is missing")
        return default


def as_number(hf: HfConfig, key: str, value: Any) -> float:
    """`value` as a float; CheckpointError naming `key` if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise hf.error(f"{key!r} must be a number, not {value!r}")
    return float(value)


def read_windows(hf: HfConfig, window: int | None, sliding_by_default: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Window of each layer: from `layer_types` where the config has them, else from `sliding_by_default`."""
    num_layers = len(sliding_by_default)
    names = hf.get("layer_types", None)
    if names is None:
        return tuple(window if sliding else None for sliding in sliding_by_default)
    known = {"full_attention", "sliding_attention"}
    if len(names) != num_layers or not known.issuperset(names):
        raise hf.error(f"'layer_types' must hold {num_layers} of {sorted(known)}, not {names!r}")
    if window is None and "sliding_attention" in names:
        raise hf.error("'layer_types' has sliding_attention, but 'sliding_window' is missing or not in use")
    return tuple(window if name == "sliding_attention" else None for name in names)


def read_rope(hf: HfConfig, head_dim: int, default_theta: float = 10_000.0) -> RopeParams:
    """Rope from `rope_parameters` (transformers 5) or from `rope_scaling` and `rope_theta` (before)."""
    rope = hf.get("rope_parameters", None) or hf.get("rope_scaling", None) or {}
    name = rope.get("rope_type", rope.get("type", "default"))
    if any(isinstance(value, Mapping) for value in rope.values()) or name not in _ROPE_KINDS:
        raise hf.error(
            f"rope {rope!r} is not supported; rope_type must be one of {sorted(_ROPE_KINDS)}, in a flat table"
        )
    max_position = hf.integer("max_position_embeddings")
    theta = _rope_number(hf, rope, "rope_theta", hf.number("rope_theta", default_theta))
    partial = _rope_number(hf, rope, "partial_rotary_factor", hf.number("partial_rotary_factor", 1.0))
    inside = rope.get("original_max_position_embeddings") or max_position
    original = hf.integer("original_max_position_embeddings", default=int(inside))
    return RopeParams(
        theta=theta,
        rotary_dim=int(head_dim * partial),
        kind=_ROPE_KINDS[name],
        max_position=max_position,
        original_max_position=original,
        **_scaling(hf, rope, name, max_position / original),
    )


def _scaling(hf: HfConfig, rope: Mapping[str, Any], name: str, ratio: float) -> dict[str, Any]:
    if name == "default":
        return {}
    factor = _rope_number(hf, rope, "factor", ratio if name == "yarn" else None)
    if name == "llama3":
        low = _rope_number(hf, rope, "low_freq_factor", None)
        high = _rope_number(hf, rope, "high_freq_factor", None)
        return {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    if name != "yarn":
        return {"factor": factor}
    optional = ("attention_factor", "mscale", "mscale_all_dim")
    return {
        "factor": factor,
        "beta_fast": _rope_number(hf, rope, "beta_fast", 32.0),
        "beta_slow": _rope_number(hf, rope, "beta_slow", 1.0),
        "truncate": bool(rope.get("truncate", True)),
        **{key: as_number(hf, key, rope[key]) for key in optional if rope.get(key) is not None},
    }


def _rope_number(hf: HfConfig, rope: Mapping[str, Any], key: str, default: float | None) -> float:
    value = rope.get(key)
    if value is None and default is None:
        raise hf.error(f"rope scaling {key!r} is missing")
    return as_number(hf, key, default if value is None else value)


def read_base(hf: HfConfig, *, head_dim: int | None = None, default_theta: float = 10_000.0) -> dict[str, Any]:
    """The fields of ModelConfig that every family writes alike; full attention in every layer.

    `head_dim`: the family's default where the config has none; None = hidden_size / num_heads.
    """
    activation = hf.get("hidden_act", "silu")
    if activation != "silu":
        raise hf.error(f"'hidden_act' {activation!r} is not supported; 'silu' is")
    num_heads, num_layers = hf.integer("num_attention_heads"), hf.integer("num_hidden_layers")
    hidden_size = hf.integer("hidden_size")
    dim = hf.integer("head_dim", default=head_dim or hidden_size // num_heads)
    num_kv_heads = hf.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads != 0 or dim % 2 != 0:
        raise hf.error(f"{num_heads} heads over {num_kv_heads} KV heads of {dim} dims do not divide evenly")
    return {
        "architecture": hf.architecture,
        "vocab_size": hf.integer("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": hf.integer("intermediate_size"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": dim,
        "max_position": hf.integer("max_position_embeddings"),
        "rms_norm_eps": hf.number("rms_norm_eps"),
        "rope": read_rope(hf, dim, default_theta),
        "windows": (None,) * num_layers,
        "tie_word_embeddings": hf.flag("tie_word_embeddings", False),
    }


def make_config(fields: dict[str, Any], **more: Any) -> ModelConfig:
    """A ModelConfig from `read_base` fields with what the family adds or overrides."""
    return ModelConfig(**{**fields, **more})
