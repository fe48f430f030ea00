"""Checks a backend on its real device and writes benchmarks/results/device_<backend>.{json,md}.

    scripts/device_check.sh                # CUDA, on a machine with a GPU
    scripts/device_check_ascend.sh         # Ascend, on a machine with an NPU
    python benchmarks/device_check/main.py --dry-run   # everything in small, interpreted; stores nothing

A dry run needs TRITON_INTERPRET=1 in the environment.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from generation import compare_tokens, decode_rates
from kernels import measure, measure_ceilings, works

from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.registry import create_backend
from isoinfer.conformance.op_cases import run_op_cases

RESULTS = Path(__file__).parents[1] / "results"
DRY = {"cuda": "interpreted", "ascend": "emulated"}
"""How the numbers of a dry run come about."""


def open_backend(name: str, dtype: str, *, dry: bool) -> Any:
    """The backend on its device; in a dry run with interpreted kernels, or with emulated operators."""
    if not dry:
        return create_backend(name, BackendConfig(dtype=dtype))
    if name == "ascend":
        from isoinfer.conformance.emulated import emulated_ascend

        return emulated_ascend("910B", BackendConfig(dtype=dtype)).backend
    from isoinfer.conformance.interpreted import interpreted_cuda

    return interpreted_cuda("sm_90", dtype)


def check_ops(backend: Any, dtypes: list[torch.dtype], seeds: int) -> dict[str, Any]:
    """How many op cases passed, by provider, and what failed."""
    results = [result for seed in range(seeds) for result in run_op_cases(backend, dtypes=dtypes, seed=seed)]
    passed = Counter(f"{r.op} by {r.provider}" for r in results if r.status == "passed")
    failed = [f"{r.id} by {r.provider}: {r.reason}" for r in results if r.status == "failed"]
    unserved = sorted({f"{r.op}: {r.reason}" for r in results if r.status == "unsupported"})
    return {"passed": dict(sorted(passed.items())), "failed": failed, "unsupported": unserved}


def run(name: str, *, dry: bool) -> dict[str, Any]:
    """All checks."""
    dtype = "float16" if dry else "bfloat16"
    backend = open_backend(name, dtype, dry=dry)
    stream = backend.stream()
    dtypes = [torch.float32, torch.float16] if dry else [torch.float32, torch.float16, torch.bfloat16]
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "executed_on": DRY[name] if dry else "device",
        "device": backend.info.description,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "describe": backend.describe(),
    }
    report["ops"] = check_ops(backend, dtypes, seeds=1 if dry else 3)
    report["tokens"] = compare_tokens(open_backend(name, "float32", dry=dry))
    torch_dtype = getattr(torch, dtype)
    ceilings = measure_ceilings(backend, stream, torch_dtype, small=dry)
    report["ceilings"] = {"GB_per_s": ceilings.bytes_per_s / 1e9, "TFLOP_per_s": ceilings.flops_per_s / 1e12}
    todo = works(backend, stream, torch_dtype, small=dry)
    report["kernels"] = [measure(backend, stream, work, ceilings, launches=1 if dry else 20) for work in todo]
    report["decode"] = decode_rates(backend, dtype, small=dry)
    return report


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    ops = report["ops"]
    lines = [
        f"# Device check, {report['date']}",
        "",
        f"{report['device']}; {report['versions']}; executed_on: {report['executed_on']}",
        "",
        f"- op cases: {sum(ops['passed'].values())} passed, {len(ops['failed'])} failed",
        *(f"  - FAILED {failure}" for failure in ops["failed"][:20]),
        *(f"- {row['model']}: {row['equal']} of {row['requests']} answers equal the CPU's" for row in report["tokens"]),
        *(
            f"- decode, {row['requests']} requests, graphs {'on' if row['graphs'] else 'off'}: "
            f"{row['tokens_per_s']:.0f} tokens/s"
            for row in report["decode"]
        ),
        f"- ceilings: {report['ceilings']['GB_per_s']:.0f} GB/s, {report['ceilings']['TFLOP_per_s']:.1f} TFLOP/s",
        "",
        "| kernel | us | of the roofline | torch / ours |",
        "|---|---|---|---|",
        *(
            f"| {row['kernel']} | {row['us']:.1f} | {row['of_roofline']:.0%} | {row.get('torch_over_ours', 0):.2f} |"
            for row in report["kernels"]
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """0 if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--dry-run", action="store_true", help="interpreted and small; stores nothing")
    args = parser.parse_args()
    report = run(args.backend, dry=args.dry_run)
    print(table(report), flush=True)
    if not args.dry_run:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"device_{args.backend}.json").write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / f"device_{args.backend}.md").write_text(table(report))
    wrong = report["ops"]["failed"] or any(row["equal"] < row["requests"] for row in report["tokens"])
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
