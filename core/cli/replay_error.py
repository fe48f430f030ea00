"""`isoinfer replay-error`: what bounded replay after a prefix hit changes, on given prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoinfer.cli.exit_codes import DONE
from isoinfer.cli.options import EngineOptions, JsonFlag, ModelPath
from isoinfer.cli.tables import print_table
from isoinfer.cli.terminal import print_json, print_note
from isoinfer.errors import UserError

if TYPE_CHECKING:
    from isoinfer.bench.replay_error import ReplayError
    from isoinfer.config import EngineConfig
    from isoinfer.engine.builder import BuiltEngine

RANDOM_PROMPTS, RANDOM_TOKENS = 4, 1024
FIGURES = ("kl", "kl_max", "agreement")


def replay_error(
    model: ModelPath,
    engine: EngineOptions,
    prompts: Annotated[
        str | None, typer.Option("--prompts", help="File of prompts, one a line; without it, random tokens.")
    ] = None,
    places: Annotated[
        int, typer.Option("--places", help="Tokens after the hit whose predictions are compared.", min=1)
    ] = 64,
    seed: Annotated[int, typer.Option("--seed", help="Of random tokens.")] = 0,
    json: JsonFlag = False,
) -> int:
    """Compare next-token distributions after a prefix hit with those of a cold run.

    Windows are in rings. --swa-replay says how they are made good after the hit: bounded unless told otherwise.
    """
    from isoinfer.bench.replay_error import ReplayMeter
    from isoinfer.engine.builder import build_engine

    engine = replace(engine, window_kv="ring", swa_replay=engine.swa_replay or "bounded")
    built = build_engine(_config(model, engine))
    try:
        for line in built.description:
            print_note(line)
        if prompts is None:
            print_note(
                "prompts: random tokens, which no text looks like; give --prompts for figures that mean something"
            )
        meter = ReplayMeter(built.engine, vocab_size=built.vocab_size, block_size=built.block_size, num_places=places)
        errors = list(meter.measure(_token_ids(built, prompts, seed)))
    finally:
        built.engine.close()
    measured = [error for error in errors if error is not None]
    if not measured:
        raise UserError(
            f"No prompt is long enough: before {places} tokens and one more it must hold whole KV blocks of "
            f"{built.block_size}, and more than are replayed. Give longer prompts or fewer --places."
        )
    mean = {name: fmean(getattr(error, name) for error in measured) for name in FIGURES}
    if json:
        replay = {"swa_replay": engine.swa_replay, "prompts": "random tokens" if prompts is None else prompts}
        print_json({**replay, "mean": mean, "each": [None if error is None else asdict(error) for error in errors]})
    else:
        _print_errors(errors, mean)
    return DONE


def _config(model: str, engine: EngineOptions) -> EngineConfig:
    from isoinfer.cli.engine_config import engine_config

    return engine_config(model, engine, backend_options={}, max_model_len=None)


def _token_ids(built: BuiltEngine, path: str | None, seed: int) -> list[list[int]]:
    if path is None:
        import numpy as np

        shape = (RANDOM_PROMPTS, min(RANDOM_TOKENS, built.max_model_len - 1))
        ids: list[list[int]] = np.random.default_rng(seed).integers(0, built.vocab_size, shape).tolist()
        return ids
    from isoinfer.cli.prompts_file import read_prompts

    tokenizer = built.checkpoint.tokenizer()
    return [list(tokenizer.encode(text)) for text in read_prompts(path, "--prompts")]


def _print_errors(errors: Sequence[ReplayError | None], mean: dict[str, Any]) -> None:
    rows = [_row(str(number), error) for number, error in enumerate(errors)]
    rows.append(("mean", "", "", "", *_figures(mean)))
    print_table(("prompt", "tokens", "cached", "places", "KL (nats)", "KL max", "top-1 agreement"), rows)


def _row(name: str, error: ReplayError | None) -> tuple[str, ...]:
    if error is None:
        return (name, "too short", "", "", "", "", "")
    sizes = (str(error.num_tokens), str(error.num_cached), str(error.num_places))
    return (name, *sizes, *_figures({figure: getattr(error, figure) for figure in FIGURES}))


def _figures(values: dict[str, Any]) -> tuple[str, str, str]:
    return f"{values['kl']:.3g}", f"{values['kl_max']:.3g}", f"{values['agreement']:.1%}"
