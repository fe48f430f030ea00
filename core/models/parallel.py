"""How each weight may be split over ranks: a small table, used by distribution, computed from the config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from isoinfer.models.config import ModelConfig

SplitKind = Literal["column", "row", "vocab", "expert", "heads", "replicated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One row of the plan. `weight` is a glob over weight names; exactly one row matches each weight.

    column: output rows, each of the merged `sections` on its own, in whole units of `unit` rows.
    row: input columns (outputs are summed over ranks; a bias is added once). vocab: rows of the
    vocabulary. expert: whole experts. heads: one entry per query head. replicated: as it is.
    """

    weight: str
    kind: SplitKind
    sections: tuple[int, ...] = ()
    unit: int = 1


def parallel_plan(config: ModelConfig) -> tuple[Split, ...]:
    """The plan of a decoder; it names also weights that this config does not have."""
    qkv, dim = (config.q_size, config.kv_size, config.kv_size), config.head_dim
    gate_up = (config.intermediate_size, config.intermediate_size)
    replicated = ("norm", "*_norm", "*.o_bias", "*.down_bias", "*.router", "*.router_bias")
    return (
        Split(weight="embed", kind="vocab"),
        Split(weight="lm_head", kind="vocab"),
        Split(weight="*.qkv", kind="column", sections=qkv, unit=dim),
        Split(weight="*.qkv_bias", kind="column", sections=qkv, unit=dim),
        Split(weight="*.sinks", kind="heads"),
        Split(weight="*.o", kind="row", unit=dim),
        Split(weight="*.gate_up", kind="column", sections=gate_up),
        Split(weight="*.gate_up_bias", kind="column", sections=gate_up),
        Split(weight="*.down", kind="row"),
        *(Split(weight=f"*.{name}", kind="expert") for name in ("w13", "w2", "w13_bias", "w2_bias")),
        *(Split(weight=name, kind="replicated") for name in replicated),
    )
