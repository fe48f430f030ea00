"""The options that several commands share. Names follow vLLM's; each is declared here once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from isoinfer.sampling_params import SamplingParams

ENGINE = "Engine"
SAMPLING = "Sampling"

ModelPath = Annotated[str, typer.Option("--model", "-m", help="Folder of a Hugging Face checkpoint, or a .gguf file.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]


def _engine(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=ENGINE)


def _sampling(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=SAMPLING, show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the engine is built: the keyword arguments of `LLM` beside the model."""

    backend: Annotated[str, _engine("--backend", help="NAME[:DEVICE], or auto for the best one here.")] = "auto"
    dtype: Annotated[str, _engine("--dtype", help="auto, float32, bfloat16 or float16.")] = "auto"
    quantization: Annotated[str | None, _engine("--quantization", help="Weight format, such as int8.")] = None
    max_model_len: Annotated[int | None, _engine("--max-model-len", help="Longest prompt plus answer, in tokens.")] = (
        None
    )
    max_num_seqs: Annotated[int, _engine("--max-num-seqs", help="Requests that run at once.")] = 256
    max_num_batched_tokens: Annotated[int, _engine("--max-num-batched-tokens", help="Tokens computed in one step.")] = (
        2048
    )
    kv_memory: Annotated[str | None, _engine("--kv-memory", help="Memory for the KV cache, such as 4GiB.")] = None
    deterministic: Annotated[
        bool, _engine("--deterministic", help="Make no request's bits depend on another's; slower.")
    ] = False
    enforce_eager: Annotated[
        bool, _engine("--enforce-eager", help="Capture no graphs, even where the backend can.")
    ] = False
    scheduling_policy: Annotated[
        str, _engine("--scheduling-policy", help="fcfs, priority, lpm (longest cached prefix) or two-phase.")
    ] = "fcfs"
    scheduling_depth: Annotated[
        int | None, _engine("--scheduling-depth", help="Steps in flight: 1, 2, or what pays on the backend.")
    ] = None
    long_prefill_token_threshold: Annotated[
        int, _engine("--long-prefill-token-threshold", help="Most prompt tokens of a request beside decodes; 0 is off.")
    ] = 0
    enable_prefix_caching: Annotated[
        bool, _engine("--enable-prefix-caching/--no-enable-prefix-caching", help="Share KV of like beginnings.")
    ] = True
    window_kv: Annotated[
        str, _engine("--window-kv", help="KV of layers with a window: paged, or ring, one for each running request.")
    ] = "paged"
    swa_replay: Annotated[
        str | None, _engine("--swa-replay", help="Rings after a prefix hit: exact, bounded or off. Default: exact.")
    ] = None
    speculative: Annotated[
        str | None, _engine("--speculative", help="Drafts to verify: ngram:5, suffix:5, or METHOD:DRAFTS:MIN:MAX.")
    ] = None
    spec_accept: Annotated[
        str, _engine("--spec-accept", help="coupled keeps seeded tokens as without drafts; rejection is the classic.")
    ] = "coupled"
    check_invariants: Annotated[
        bool, _engine("--check-invariants", help="Assert the scheduler's invariants in every step; slow.")
    ] = False
    fallback: Annotated[str, _engine("--fallback", help="Where an op has no kernel: fail, composed or reference.")] = (
        "composed"
    )
    threads: Annotated[int | None, _engine("--threads", help="Threads the backend may use.")] = None

    def as_dict(self) -> dict[str, Any]:
        """The keyword arguments of `LLM`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """The fields of SamplingParams that have a flag. None or empty means: not given."""

    max_tokens: Annotated[int | None, _sampling("--max-tokens", help="Most tokens to generate.")] = None
    min_tokens: Annotated[int | None, _sampling("--min-tokens", help="Fewest tokens before an end counts.")] = None
    temperature: Annotated[float | None, _sampling("--temperature", help="0 is greedy; 1 the model's own.")] = None
    top_p: Annotated[float | None, _sampling("--top-p", help="Keep the likeliest tokens with this mass.")] = None
    top_k: Annotated[int | None, _sampling("--top-k", help="Keep this many tokens; 0 is off.")] = None
    min_p: Annotated[float | None, _sampling("--min-p", help="Keep tokens this likely, relative to the best.")] = None
    seed: Annotated[int | None, _sampling("--seed", help="The same seed gives the same tokens.")] = None
    stop: Annotated[list[str] | None, _sampling("--stop", help="Text that ends the answer. Repeatable.")] = None
    stop_token_ids: Annotated[
        list[int] | None, _sampling("--stop-token-ids", help="Token that ends the answer. Repeatable.")
    ] = None
    include_stop_str_in_output: Annotated[
        bool, _sampling("--include-stop-str-in-output", help="Keep the stop text in the answer.")
    ] = False
    ignore_eos: Annotated[bool, _sampling("--ignore-eos", help="Go on past the model's end token.")] = False
    presence_penalty: Annotated[
        float | None, _sampling("--presence-penalty", help="Against tokens already used, -2 to 2.")
    ] = None
    frequency_penalty: Annotated[
        float | None, _sampling("--frequency-penalty", help="Against tokens often used, -2 to 2.")
    ] = None
    repetition_penalty: Annotated[
        float | None, _sampling("--repetition-penalty", help="Divides logits of tokens seen; 1 is off.")
    ] = None
    bad_words: Annotated[list[str] | None, _sampling("--bad-words", help="Words never to write. Repeatable.")] = None
    logprobs: Annotated[
        int | None, _sampling("--logprobs", help="Log-probabilities of this many best tokens; see --json.")
    ] = None
    skip_special_tokens: Annotated[
        bool, _sampling("--skip-special-tokens/--no-skip-special-tokens", help="Leave special tokens out of the text.")
    ] = True

    def params(self, **others: Any) -> SamplingParams:
        """SamplingParams of what was given over `others`. RequestError for an impossible value."""
        from isoinfer.sampling_params import SamplingParams

        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return SamplingParams.from_dict({**others, **{k: v for k, v in given.items() if v is not None and v != []}})
