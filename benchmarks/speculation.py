"""Tokens per second with and without drafts on the CPU, on code and on prose, and how many drafts were right.

    python benchmarks/speculation.py [--store]

The prompts are pieces of a program to be continued, and questions to be answered in prose; greedy, end tokens
ignored. What is said of acceptance holds for these texts and this small model, which repeats itself, and for no other.
"""

from __future__ import annotations

import argparse
import inspect
import os
import statistics

from stored import add_store_option, store, table
from turns import Job, Worker, demo_model, isoinfer, workers

from isoinfer.frontend.tokenizer import Tokenizer
from isoinfer.weights.open import open_checkpoint

OFF = "off"
METHODS = (OFF, "ngram:5", "suffix:5")
CODE_TOKENS = 256
QUESTIONS = (
    "Why is the sky blue in the morning and red in the evening?",
    "How does a sailing boat move against the wind?",
    "What should one look for when buying an old bicycle?",
    "Tell me about a walk through a small town in winter.",
    "How do bees find their way home?",
    "What makes bread rise, and why does it sometimes fail?",
    "Describe a day in the life of a lighthouse keeper.",
    "How did people measure time before there were clocks?",
)


def jobs(tokenizer: Tokenizer, numbers: list[int], max_tokens: int) -> list[Job]:
    """Code and prose, so many requests at once."""
    source = tokenizer.encode(inspect.getsource(inspect)[4000:40000])
    code = [source[first : first + CODE_TOKENS] for first in range(0, len(QUESTIONS) * CODE_TOKENS, CODE_TOKENS)]
    prose = [tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n") for text in QUESTIONS]
    return [
        Job(
            name=f"{kind}, {number} request{'s' if number > 1 else ''}",
            prompts=prompts[:number],
            max_tokens=[max_tokens] * number,
        )
        for kind, prompts in (("code", code), ("prose", prose))
        for number in numbers
    ]


def speculation_table(found: list[Worker], todo: list[Job]) -> str:
    """Medians, ratio to no drafts, and accepted drafts."""
    off = next(worker for worker in found if worker.name == OFF)
    rows = []
    for job in todo:
        for worker in found:
            rates, said = worker.rates[job.name], worker.said[job.name]
            ratio = statistics.median(rates) / statistics.median(off.rates[job.name])
            share = f"{said['accepted_tokens'] / said['draft_tokens']:.0%}" if said["draft_tokens"] else ""
            spread = f"{min(rates):.1f} - {max(rates):.1f}"
            rows.append([job.name, worker.name, f"{statistics.median(rates):.1f}", spread, f"{ratio:.2f}", share])
    return table(["text", "drafts", "output tokens/s (median)", "min - max", "over off", "accepted"], rows)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file (default: the demo's model)")
    parser.add_argument("--num-requests", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    add_store_option(parser)
    args = parser.parse_args()
    model = os.path.abspath(args.model or demo_model())
    todo = jobs(open_checkpoint(model).tokenizer(), args.num_requests, args.max_tokens)
    commands = {name: isoinfer(model, speculative=name) for name in METHODS}
    with workers(commands) as found:
        for repeat in range(args.repeats):
            print(f"repeat {repeat + 1}", flush=True)
            for job in todo:
                for worker in found:
                    worker.run(job)
    shown = speculation_table(found, todo)
    print(shown)
    if args.store:
        about = (
            f"SmolLM2-135M-Instruct, greedy, {args.max_tokens} tokens a request; medians of {args.repeats} repeats, "
            "interleaved. Acceptance holds for these texts only. executed_on: device."
        )
        record = {
            "executed_on": "device",
            "repeats": args.repeats,
            "engines": {w.name: {**w.record(), "said": w.said} for w in found},
        }
        notes = "\n".join(f"- {worker.name}: {worker.notes}; {worker.describe_load()}" for worker in found)
        store("speculation", record, title="Drafts on the CPU", about=about, shown=shown, notes=notes)


if __name__ == "__main__":
    main()
