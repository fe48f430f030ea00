"""Runs the Ascend backend's whole engine steps against torch_npu's real schemas. A program: prints JSON.

It needs torch_npu over stub CANN libraries (`scripts/check-npu-schema` makes both) and no NPU.
"""

from __future__ import annotations

import inspect
import json
from importlib.resources import files
from typing import Any

import torch

from isoinfer.backends.ascend.create import assemble
from isoinfer.backends.ascend.soc import SOCS, Soc
from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.conformance.fake_step import FAMILIES, FakeRuntime, LaunchChecker, run_family
from isoinfer.conformance.npu_emulation import operators

ON_PURPOSE = {("npu_fused_infer_attention_score_v2", "softmax_scale")}
"""Parameters whose default the emulation does not take over, since nobody means it."""


def compare_signatures() -> list[str]:
    """Where an emulated operator's parameters are not those of the real one."""
    schemas = {s.name: s for s in torch._C._jit_get_all_schemas() if s.name.startswith("npu::") and not s.overload_name}
    wrong = []
    for name, method in operators().items():
        real = {argument.name: argument for argument in schemas[f"npu::{name}"].arguments}
        parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
        for place, parameter in enumerate(parameters):
            if parameter.name not in real:
                wrong.append(f"{name} has no parameter {parameter.name}")
                continue
            argument = real[parameter.name]
            if argument.kwarg_only != (parameter.kind is inspect.Parameter.KEYWORD_ONLY):
                wrong.append(f"{name}: {parameter.name} differs in being keyword-only")
            if not argument.kwarg_only and [*real].index(parameter.name) != place:
                wrong.append(f"{name}: {parameter.name} has another place")
            if (name, parameter.name) not in ON_PURPOSE and not _same_default(argument, parameter):
                wrong.append(f"{name}: {parameter.name} has another default")
    return wrong


def _same_default(argument: Any, parameter: inspect.Parameter) -> bool:
    if not argument.has_default_value():
        return parameter.default is inspect.Parameter.empty
    return (argument.default_value or None) == (parameter.default or None)


def run(soc: Soc, config: BackendConfig, compiled: frozenset[str] | None) -> dict[str, Any]:
    """Every family on `soc`: what it used, or the error."""
    results: dict[str, Any] = {}
    for family, model in FAMILIES.items():
        runtime, launcher = FakeRuntime(torch.device("npu", 0)), LaunchChecker(compiled)
        device = DeviceInfo(id="0", description=f"Ascend {soc.name}, fake", score=0)

        def make(runtime: FakeRuntime = runtime, launcher: LaunchChecker = launcher, device: Any = device) -> Any:
            return assemble(device, config, soc, runtime, torch.ops.npu, launcher, lambda: False)

        used = run_family(model, runtime, make, launcher, "npu")
        results[family] = {"operators": used.operators, "kernels": used.kernels, "providers": used.providers}
    return results


def compiled_keys(target: str) -> frozenset[str] | None:
    """The keys of the kernel cases that compile for `target`, or None where there is no table."""
    table = files("isoinfer.kernels_ascend").joinpath("compiled.json")
    return frozenset(json.loads(table.read_text(encoding="utf-8"))["targets"][target]) if table.is_file() else None


def main() -> None:
    """All chips in bfloat16, one also in float32, two also under `--deterministic`."""
    import torch_npu  # registers its operators and the device; only this program's own environment has it

    half, full = BackendConfig(dtype="bfloat16"), BackendConfig(dtype="float32")
    runs = {f"{soc.name}-bfloat16": run(soc, half, compiled_keys(soc.target)) for soc in SOCS.values()}
    b3 = SOCS["910B"]
    runs["910B-float32"] = run(b3, full, compiled_keys(b3.target))
    for soc in (b3, SOCS["950"]):
        alone = BackendConfig(dtype="bfloat16", deterministic=True)
        runs[f"{soc.name}-deterministic"] = run(soc, alone, compiled_keys(soc.target))
    keys = compiled_keys(b3.target)
    compiled = None if keys is None else len(keys)
    report = {"torch_npu": torch_npu.__version__, "signatures": compare_signatures(), "compiled": compiled}
    print(json.dumps({**report, "runs": runs}))


if __name__ == "__main__":
    main()
