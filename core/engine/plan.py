"""What one step does, and what came of it: ints and numpy arrays only, immutable once submitted.

A plan round-trips through bytes (`isoinfer.engine.wire`), so a group of ranks can receive it and the
engine can live in another process. It names requests by slot and number, never by object.

Suffixes: R rows (one request's share of a step), T tokens over all rows, B blocks of the widest row,
G rows that sample, M entries of a sparse list, L history length, W words of a vocabulary bit mask, Q places of prompt
log-probabilities, X best tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isoinfer.engine.messages import Float32Array, Int32Array, TokenLogprobs

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The forward part of a step.

    `request_R`: engine-wide request numbers; `epoch_R`: how often the request was restarted; `slot_R`:
    stable slots. `start_R`: tokens already computed; `query_len_R`: tokens computed now; `samples_R`:
    whether the row reaches its last known token. `remap_R`: row of the same request in the previous
    step whose token is still on the device, or -1 where `token_ids_T` is complete (always at depth 1).
    `block_table_RB` is padded with 0. Prompt log-probabilities are asked for Q places: the token at index
    `prompt_index_Q` of the step predicts `prompt_target_Q`, which stands at `prompt_position_Q` of row
    `prompt_row_Q`; `num_prompt_logprobs` best tokens are wanted with each.
    """

    step_id: int
    request_R: Int64Array
    epoch_R: Int32Array
    slot_R: Int32Array
    start_R: Int32Array
    query_len_R: Int32Array
    samples_R: BoolArray
    remap_R: Int32Array
    block_table_RB: Int32Array
    token_ids_T: Int32Array
    prompt_index_Q: Int32Array
    prompt_target_Q: Int32Array
    prompt_row_Q: Int32Array
    prompt_position_Q: Int32Array
    num_prompt_logprobs: int

    def __post_init__(self) -> None:
        assert int(self.query_len_R.sum()) == self.token_ids_T.size, "token count differs from the query lengths"
        assert self.token_ids_T.size == 0 or int(self.token_ids_T.min()) >= 0, "a plan never holds a negative token id"

    @property
    def num_rows(self) -> int:
        """Rows in this step."""
        return int(self.request_R.size)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return int(self.token_ids_T.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """The sampling part of a step, for its G sampling rows in row order; submitted after the previous
    step has settled, so masks that need its tokens are exact.

    `position_G`: position of the token to be sampled. `bias_*`: sparse additions to logits (`-inf`
    bans). `mask_GW`: vocabulary bit masks, or width 0 for none. `num_logprobs`: the most that any row
    wants, -1 for none. Penalties read `history_GL` (prompt and output tokens) up to `length_G`; its
    width is 0 where no row is penalised.
    """

    step_id: int
    temperature_G: Float32Array
    top_k_G: Int32Array
    top_p_G: Float32Array
    min_p_G: Float32Array
    seed_G: Int64Array
    position_G: Int32Array
    history_GL: Int32Array
    prompt_len_G: Int32Array
    length_G: Int32Array
    presence_G: Float32Array
    frequency_G: Float32Array
    repetition_G: Float32Array
    bias_row_M: Int32Array
    bias_token_M: Int32Array
    bias_value_M: Float32Array
    mask_GW: Int32Array
    num_logprobs: int

    @property
    def all_greedy(self) -> bool:
        """Whether every row takes the most likely token."""
        return not bool(self.temperature_G.any())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a settled step produced: one token for each sampling row, in row order, and the
    log-probabilities that were asked for (`prompt_logprobs` in the order of the plan's Q places)."""

    step_id: int
    token_G: Int32Array
    logprobs: TokenLogprobs | None
    prompt_logprobs: TokenLogprobs | None
