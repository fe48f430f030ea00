"""Takes every Ascend kernel through the real compilers to optimised HIVM, and compares with the stored table.

Runs in an environment of its own, which `scripts/check-ascend` makes: triton-ascend for Triton IR and linalg, and
BiShengIR for what follows, up to tiling, memory planning and synchronisation. The last step, `hivmc`, is a part
of CANN: its absence is the one error that is no failure. Results are kept in the user's cache by content.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isoinfer.backends.kernel_case import KernelCase
from isoinfer.conformance.hivm_cases import CHIPS, cases_for, source_hash

TABLE = Path(__file__).resolve().parents[1] / "kernels_ascend" / "compiled.json"
PACKAGES = ("triton-ascend", "ascendnpu-ir")
FLAGS = ("--enable-hfusion-compile=true", "--enable-triton-kernel-compile=true", "--enable-hivm-compile=true")
EXPECTED = ("hivmc", "Failed to run BiShengIR pipeline")
LIMIT_S = 300
Outcome = dict[str, Any]
"""`error`: "" or the first one. `ub_bits`: planned unified buffer, where the tool tells (950 only)."""


def to_linalg(case: KernelCase) -> str:
    """Triton IR and then linalg, as text. Raises what the compiler raises."""
    import triton.backends.ascend.compiler as compiler
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    compiler._check_bishengir_is_regbased = lambda: False  # asks a compiler of CANN, which is not here
    kinds = {name: kind.partition(":")[0] for name, kind in case.signature}
    names = case.kernel.arg_names
    source = ASTSource(
        fn=case.kernel,
        signature={name: kinds[name] for name in names if name in kinds},
        constants={name: case.constants[name] for name in names if name not in kinds},
    )
    target = GPUTarget("npu", "Ascend910_9589", 0)
    backend = compiler.AscendBackend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    metadata = {**options.__dict__, "target": target, "hash": case.key}
    module = compiler.make_ttir(module, metadata, options)
    text = compiler.ttir_to_linalg(module, metadata, options, named_ops=True)
    return re.sub(r', mix_mode\s*=\s*"[^"]*"', "", text)


def to_hivm(linalg: str, target: str) -> Outcome:
    """The rest of the way, by BiShengIR's command-line compiler."""
    modern = "950" in target
    spec = find_spec("ascendnpuir")
    assert spec is not None, "ascendnpu-ir is not installed"
    assert spec.submodule_search_locations
    tool = (
        Path(spec.submodule_search_locations[0]) / "bin" / ("bishengir-compile-a5" if modern else "bishengir-compile")
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.mlir"
        source.write_text(linalg)
        command = [
            str(tool),
            str(source),
            f"--target={target}",
            *FLAGS,
            f"--save-temps={folder}",
            "-o",
            f"{folder}/out",
        ]
        command += ["--enable-print-memory-allocated-size"] if modern else []
        run = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=LIMIT_S, check=False)
        log = run.stdout + run.stderr
        written = any(Path(folder).rglob("module.hivm.opt.mlir"))
    errors = [line for line in log.splitlines() if "error" in line.lower() and not any(e in line for e in EXPECTED)]
    if not written and not errors:
        errors = [f"no optimised HIVM was written: {log[-500:]}"]
    overflow = [line for line in errors if "overflow" in line]
    sizes = re.findall(r"Allocated UB size = (\d+) bits", log)
    error = re.sub(r"^loc\(.*?\): ", "", (overflow or errors or [""])[0])
    return {"error": error, "ub_bits": max(map(int, sizes)) if sizes else None}


def cached(case: KernelCase, target: str, pool: ThreadPoolExecutor) -> Future[Outcome]:
    """What the compilers say to `case`, from the cache where they have said it."""
    content = json.dumps([case.key, source_hash(case), target, versions(), FLAGS])
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = root / "isoinfer" / "hivm" / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"
    done: Future[Outcome] = Future()
    if path.exists():
        done.set_result(json.loads(path.read_text()))
        return done
    try:
        linalg = to_linalg(case)
    except Exception as error:  # the compiler raises whatever it likes
        detail = getattr(error, "stderr", None) or b""
        done.set_result({"error": f"{type(error).__name__}: {error} {detail.decode()[-500:]}", "ub_bits": None})
        return done

    def compile_and_keep() -> Outcome:
        outcome = to_hivm(linalg, target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(f".{os.getpid()}").write_text(json.dumps(outcome))
        path.with_suffix(f".{os.getpid()}").replace(path)
        return outcome

    return pool.submit(compile_and_keep)


def versions() -> dict[str, str]:
    """Of the compilers."""
    return {package: version(package) for package in PACKAGES}


def too_large(case: KernelCase) -> KernelCase:
    """`case` of the attention with tiles that no chip holds: the check must be able to fail."""
    return replace(case, constants={**case.constants, "BLOCK_M": 64, "BLOCK_S": 1024, "BLOCK_SIZE": 1024})


def main(arguments: list[str]) -> int:
    """0 if every case compiles as the table says. `--update` writes the table, if every case compiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the table")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    problems: list[str] = []
    table: dict[str, Any] = {"versions": versions(), "targets": {}}
    with ThreadPoolExecutor(options.jobs) as pool:
        for soc in CHIPS:
            cases = cases_for(soc)
            outcomes = {key: cached(case, soc.target, pool) for key, case in cases.items()}
            attention = next(case for case in cases.values() if case.name == "paged_attention_kernel")
            proof = cached(too_large(attention), soc.target, pool).result()
            if "overflow" not in proof["error"]:
                problems.append(f"{soc.target}: tiles that no chip holds give no overflow but {proof}")
            rows = {}
            for key, case in cases.items():
                outcome = outcomes[key].result()
                if outcome["error"]:
                    problems.append(f"{soc.target}: {key} {dict(case.constants)}: {outcome['error']}")
                rows[key] = {"source": source_hash(case), "ub_bits": outcome["ub_bits"]}
            table["targets"][soc.target] = dict(sorted(rows.items()))
            print(f"{soc.target}: {len(cases)} kernel cases compiled to HIVM; too large a tile gives: {proof['error']}")
    if options.update and not problems:
        TABLE.write_text(json.dumps(table, indent=1) + "\n")
    elif not problems and (not TABLE.exists() or json.loads(TABLE.read_text()) != table):
        problems.append(f"{TABLE.name} is not what the compilers say now: run scripts/check-ascend --update")
    print(*problems or ["all as stored"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
