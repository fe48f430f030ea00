"""A promise: options do not come, go or change their names without a visible decision."""

from __future__ import annotations

from typer.main import get_command

from isoinfer.cli.app import build_app

ENGINE = (
    "--backend --check-invariants --deterministic --dtype --enable-prefix-caching --enforce-eager --fallback "
    "--kv-memory --long-prefill-token-threshold --max-model-len --max-num-batched-tokens --max-num-seqs --model "
    "--no-enable-prefix-caching --quantization --scheduling-depth --scheduling-policy --spec-accept --speculative "
    "--swa-replay --threads --window-kv -m"
)
SAMPLING = (
    "--bad-words --frequency-penalty --ignore-eos --include-stop-str-in-output --logprobs --max-tokens --min-p "
    "--min-tokens --no-skip-special-tokens --presence-penalty --repetition-penalty --seed --skip-special-tokens "
    "--stop --stop-token-ids --temperature --top-k --top-p"
)
FROZEN = {
    "generate": f"{ENGINE} {SAMPLING} --json --n --prompts-file -n",
    "chat": f"{ENGINE} {SAMPLING} --json --system",
    "batch": f"{ENGINE} --input-file --json --output-file --overwrite -i -o",
    "backends": "--json --refresh",
    "explain": f"{ENGINE} --assume --json",
    "bench": f"{ENGINE} --backend-option --input-len --json --num-prompts --num-warmups --output-len --prefix-len "
    "--seed --sim-devices --sim-model",
    "replay-error": f"{ENGINE} --json --places --prompts --seed",
}


def test_options_are_frozen():
    commands = get_command(build_app()).commands
    found = {
        name: {
            option for p in command.params if p.param_type_name == "option" for option in (*p.opts, *p.secondary_opts)
        }
        for name, command in commands.items()
    }
    assert found == {name: set(options.split()) for name, options in FROZEN.items()}
