"""The core knows no vendor: neither by import nor by name, and of backends only the seam."""

from __future__ import annotations

import ast
import re
import sys

VENDOR = re.compile(
    r"(?<![a-z])(cuda|nvidia|triton|nccl|ascend|npu|hccl|rocm|amd|hip|intel|xpu)(?![a-z])", re.IGNORECASE
)
LIBRARIES = {"gguf", "jinja2", "numpy", "pydantic", "rich", "safetensors", "tokenizers", "torch", "typer"}
SEAM = re.compile(r"isoinfer\.backends\.(interface|simulated|descriptor|evidence|registry\w*|ops(\.\w+)*)$")


def test_the_core_names_no_vendor(trees: dict[str, ast.Module]) -> None:
    core = {name: ast.unparse(tree) for name, tree in trees.items() if name.startswith("core/")}
    assert [(name, match[0]) for name, text in core.items() for match in VENDOR.finditer(text)] == []


def test_the_core_imports_only_itself_the_seam_and_its_libraries(trees: dict[str, ast.Module]) -> None:
    wrong = []
    for name, tree in trees.items():
        for node in ast.walk(tree) if name.startswith("core/") else ():
            names = [node.module or "."] if isinstance(node, ast.ImportFrom) else []
            for module in names + ([alias.name for alias in node.names] if isinstance(node, ast.Import) else []):
                top = module.partition(".")[0]
                ours = not module.startswith("isoinfer.backends") or SEAM.match(module)
                if not (ours if top == "isoinfer" else top in LIBRARIES | sys.stdlib_module_names):
                    wrong.append((name, module))
    assert wrong == []
