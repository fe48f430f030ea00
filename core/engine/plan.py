"""What one step does, and what came of it: ints and numpy arrays only, immutable once submitted.

A plan round-trips through bytes (`isoinfer.engine.wire`), so a group of ranks can receive it and the
engine can live in another process. It names requests by slot and number, never by object.

Suffixes: R rows (one request's share of a step), T tokens over all rows, B blocks of the widest row,
G rows that sample, P places whose logits are sampled (1 + drafts of each such row), J 1 + most drafts,
K most drafts, M entries of a sparse list, L history length, W words of a vocabulary bit mask, Q places of
prompt log-probabilities, X predicted tokens, E slots entered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isoinfer.engine.messages import Float32Array, Int32Array, TokenLogprobs

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

FRESH = -1
"""In `remap_R`: the row takes nothing from the previous step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The forward part of a step.

    `request_R`: engine-wide request numbers; `epoch_R`: how often the request was restarted; `slot_R`: stable slots.
    `start_R`: tokens before this row's first, an upper bound: less by the drafts of the previous step that are
    rejected, which are at most `uncertain_R`. `query_len_R`: tokens computed now; `num_drafts_R`: how many of them,
    at the end of the row, are guesses to be verified; `samples_R`: whether the row reaches its last known token.
    `remap_R`: row of the same request in the previous step, whose tokens are still on the device (0 stands for them
    in `token_ids_T`), or FRESH where `token_ids_T` is complete (always at depth 1). `floor_R`: positions before it
    are invisible to the row in rings. `write_floor_R`: tokens before it are computed, but their blocks are not
    written. `block_tables`: one `[R, B]` for each KV group with blocks, padded with 0. `predicted_RX`: what a
    proposer on the host expects after the settled tokens of a remapped row, `num_predicted_R` tokens; X is 0 without
    one.
    `entered_*`: slots that a request has just entered and its known tokens, one after another, where a proposer on
    the device needs them.
    Prompt log-probabilities are asked for Q places: the token at index `prompt_index_Q` of the step predicts
    `prompt_target_Q`, which stands at `prompt_position_Q` of row `prompt_row_Q`; `num_prompt_logprobs`
    best tokens are wanted with each.
    """

    step_id: int
    request_R: Int64Array
    epoch_R: Int32Array
    slot_R: Int32Array
    start_R: Int32Array
    uncertain_R: Int32Array
    query_len_R: Int32Array
    num_drafts_R: Int32Array
    samples_R: BoolArray
    remap_R: Int32Array
    floor_R: Int32Array
    write_floor_R: Int32Array
    block_tables: tuple[Int32Array, ...]
    token_ids_T: Int32Array
    predicted_RX: Int32Array
    num_predicted_R: Int32Array
    entered_slot_E: Int32Array
    entered_len_E: Int32Array
    entered_tokens_T: Int32Array
    prompt_index_Q: Int32Array
    prompt_target_Q: Int32Array
    prompt_row_Q: Int32Array
    prompt_position_Q: Int32Array
    num_prompt_logprobs: int

    def __post_init__(self) -> None:
        assert int(self.query_len_R.sum()) == self.token_ids_T.size, "token count differs from the query lengths"
        assert self.token_ids_T.size == 0 or int(self.token_ids_T.min()) >= 0, "a plan never holds a negative token id"
        assert self.predicted_RX.size == 0 or int(self.predicted_RX.min()) >= 0, "a prediction is a token id"

    @property
    def num_rows(self) -> int:
        """Rows in this step."""
        return int(self.request_R.size)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return int(self.token_ids_T.size)

    @property
    def is_remapped(self) -> bool:
        """Whether any row takes tokens from the previous step."""
        return bool((self.remap_R >= 0).any())

    @property
    def knows_lengths(self) -> bool:
        """Whether `start_R` is exact for every row."""
        return not self.uncertain_R.any()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """The sampling part of a step, for its P places in row order; submitted after the previous
    step has settled, so positions, histories and masks are exact.

    `places_G`: places of each sampling row. `position_P`: position of the token to be sampled. `bias_*`:
    sparse additions to logits (`-inf` bans). `mask_PW`: vocabulary bit masks, or width 0 for none.
    `num_logprobs`: the most that any row wants, -1 for none. Penalties read `history_PL` (prompt, output
    tokens and the drafts before the place) up to `length_P`; its width is 0 where no row is penalised.
    """

    step_id: int
    places_G: Int32Array
    temperature_P: Float32Array
    top_k_P: Int32Array
    top_p_P: Float32Array
    min_p_P: Float32Array
    seed_P: Int64Array
    position_P: Int32Array
    history_PL: Int32Array
    prompt_len_P: Int32Array
    length_P: Int32Array
    presence_P: Float32Array
    frequency_P: Float32Array
    repetition_P: Float32Array
    bias_row_M: Int32Array
    bias_token_M: Int32Array
    bias_value_M: Float32Array
    mask_PW: Int32Array
    num_logprobs: int

    @property
    def num_places(self) -> int:
        """Logits rows that are sampled."""
        return int(self.position_P.size)

    @property
    def all_greedy(self) -> bool:
        """Whether every place takes the most likely token."""
        return not bool(self.temperature_P.any())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a settled step produced, for its G sampling rows in row order.

    `token_GJ`: the row's new tokens, `count_G` of them (accepted drafts and one more); the rest is 0.
    `draft_GK`: `num_drafts_G` guesses at what comes next, where a proposer on the device makes them.
    `logprobs` are those of all P places in order; `prompt_logprobs` in the order of the plan's Q places.
    """

    step_id: int
    token_GJ: Int32Array
    count_G: Int32Array
    draft_GK: Int32Array
    num_drafts_G: Int32Array
    logprobs: TokenLogprobs | None
    prompt_logprobs: TokenLogprobs | None
