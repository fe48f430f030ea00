"""Outputs as JSON values."""

from __future__ import annotations

import math
from typing import Any

from isoinfer.outputs import CompletionOutput, Logprob, RequestOutput


def output_dict(output: RequestOutput) -> dict[str, Any]:
    """What a RequestOutput says, without its prompt's tokens and times."""
    num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
    return {
        "outputs": [completion_dict(completion) for completion in output.outputs],
        "usage": {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": num_tokens,
            "total_tokens": len(output.prompt_token_ids) + num_tokens,
            "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens},
        },
        "error": output.error,
    }


def completion_dict(completion: CompletionOutput) -> dict[str, Any]:
    """One completion. `logprobs` is there only if asked for: per token a list, the token itself first."""
    result = {
        "index": completion.index,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if completion.logprobs is not None:
        result["logprobs"] = [[_logprob(*item) for item in entry.items()] for entry in completion.logprobs]
    return result


def _logprob(token_id: int, logprob: Logprob) -> dict[str, Any]:
    # JSON has no infinity: a banned token has the value null.
    value = logprob.logprob if math.isfinite(logprob.logprob) else None
    return {"token_id": token_id, "token": logprob.decoded_token, "logprob": value, "rank": logprob.rank}
