"""`isoinfer bench`: offline throughput of a model here, or of a named model on a simulated device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoinfer.cli.exit_codes import DONE
from isoinfer.cli.options import EngineOptions, JsonFlag
from isoinfer.cli.tables import print_table
from isoinfer.cli.terminal import print_json, print_note, stderr_is_terminal
from isoinfer.errors import UserError

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend
    from isoinfer.bench.mix import RequestMix
    from isoinfer.config import EngineConfig
    from isoinfer.engine.engine import Engine

SIMULATED = "SIMULATED: nothing below was measured on such a device"


def bench(
    engine: EngineOptions,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Folder of a Hugging Face checkpoint, or a .gguf file.")
    ] = None,
    sim_model: Annotated[
        str | None, typer.Option("--sim-model", help="Instead: a model known by numbers, on --backend sim:CHIP.")
    ] = None,
    sim_devices: Annotated[
        int | None, typer.Option("--sim-devices", help="Chips that share it; as few as hold the weights.", min=1)
    ] = None,
    num_prompts: Annotated[int, typer.Option("--num-prompts", help="Requests, all there at the start.", min=1)] = 256,
    input_len: Annotated[str, typer.Option("--input-len", help="Tokens of a prompt: 512 or 100-1024.")] = "100-1024",
    output_len: Annotated[str, typer.Option("--output-len", help="Tokens of an answer, likewise.")] = "100-1024",
    prefix_len: Annotated[
        int, typer.Option("--prefix-len", help="Tokens before each prompt that all share.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Of tokens and lengths.")] = 0,
    num_warmups: Annotated[
        int, typer.Option("--num-warmups", help="Requests answered before, which do not count; not simulated.", min=0)
    ] = 1,
    backend_option: Annotated[
        list[str] | None, typer.Option("--backend-option", help="NAME=VALUE that the backend knows. Repeatable.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Measure offline throughput with random prompts; every answer has its full length."""
    from isoinfer.bench.mix import Range, RequestMix
    from isoinfer.cli.engine_config import engine_config

    mix = RequestMix(
        num_prompts=num_prompts,
        input_len=Range.parse(input_len, "--input-len"),
        output_len=Range.parse(output_len, "--output-len"),
        prefix_len=prefix_len,
        seed=seed,
    )
    options = _pairs(backend_option or [])
    # A request gets as much context as the longest of them needs, unless told otherwise.
    config = engine_config(model or "", engine, backend_options=options, max_model_len=mix.longest)
    if (model is None) == (sim_model is None):
        raise UserError("Say what to run: -m MODEL here, or --sim-model NAME with --backend sim:CHIP.")
    if model is not None:
        figures = _run_model(config, mix, num_warmups)
    else:
        assert sim_model is not None
        figures = _run_simulated(config, mix, sim_model, sim_devices, options)
    if json:
        print_json(figures)
    else:
        _print_figures(figures)
    return DONE


def _run_model(config: EngineConfig, mix: RequestMix, num_warmups: int) -> dict[str, Any]:
    from isoinfer.bench.measure import measure
    from isoinfer.engine.builder import build_engine, make_backend

    backend = make_backend(config)
    built = build_engine(replace(config, backend=backend))
    _print_lines(built.description)
    try:
        measure(built.engine, replace(mix, num_prompts=num_warmups, seed=mix.seed + 1).requests(built.vocab_size))
        figures = _measured(built.engine, backend, mix, built.vocab_size)
    finally:
        built.engine.close()
    return {"model": config.model, "device": f"{backend.name}:{backend.info.id}", **figures}


def _run_simulated(
    config: EngineConfig, mix: RequestMix, name: str, count: int | None, options: Mapping[str, str]
) -> dict[str, Any]:
    from isoinfer.bench.simulate import named_model, simulated_engine

    made = simulated_engine(config, named_model(name), count=count, options=options)
    _print_lines(made.description)
    figures = _measured(made.engine, made.backend, mix, made.vocab_size)
    return {"model": name, "device": f"{made.count} x {made.backend.name}:{made.backend.info.id}", **figures}


def _measured(engine: Engine, backend: Backend, mix: RequestMix, vocab_size: int) -> dict[str, Any]:
    """The mix's figures, by the clock of the backend where that is not the real one."""
    from isoinfer.backends.simulated import Simulated
    from isoinfer.bench.measure import measure

    now = backend.now if isinstance(backend, Simulated) else time.perf_counter
    with _bar(mix) as show:
        figures = measure(engine, mix.requests(vocab_size), now=now, show=show).figures()
    if isinstance(backend, Simulated):
        times = backend.times()
        figures["device_idle_fraction"] = times.idle_fraction
        figures["exposed_host_us"] = {"p50": times.exposed_us_p50, "p99": times.exposed_us_p99}
        figures["host_us_per_row"] = 1e6 * times.host_s / max(times.rows, 1)
    return {"simulated": isinstance(backend, Simulated), **figures}


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"--backend-option {text!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


@contextmanager
def _bar(mix: RequestMix) -> Iterator[Callable[[int, int], None]]:
    if not stderr_is_terminal():
        yield lambda done, tokens: None
        return
    from isoinfer.cli.progress import item_progress

    with item_progress("requests", mix.num_prompts) as show:
        yield show


def _print_lines(lines: tuple[str, ...]) -> None:
    for line in lines:
        print_note(line)


def _print_figures(figures: Mapping[str, Any]) -> None:
    """One figure a line; spreads on one line."""
    if figures["simulated"]:
        print(SIMULATED)
    rows = [(name, _shown(value)) for name, value in figures.items() if name != "simulated"]
    print_table(("figure", "value"), rows)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(number)}" for name, number in value.items())
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
