"""Promise: inside a forward pass torch makes views and empty buffers; whatever computes is a bound op.

Checked in the source: methods of layers and of the decoder call only `self.something(...)`, views and
each other, and use no operators (slices, `-1` and `is None` aside).
"""

from __future__ import annotations

import ast
from pathlib import Path

CORE = Path(__file__).parents[3] / "core"
FILES = [*(CORE / "layers").glob("*.py"), CORE / "models" / "decoder.py"]
ALLOWED = {"view", "reshape", "flatten", "new_empty", "layer", "enumerate"}
OPERATORS = (ast.BinOp, ast.UnaryOp, ast.AugAssign, ast.Compare)


def forward_methods() -> list[ast.FunctionDef]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in FILES if path.name != "parts.py"]
    methods = [item for tree in trees for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for item in c.body]
    return [item for item in methods if isinstance(item, ast.FunctionDef) and item.name != "__init__"]


def test_forward_methods_only_call_bound_ops_and_views() -> None:
    assert {"__call__", "hidden", "logits", "q_heads"} <= {method.name for method in forward_methods()}
    for node in (node for method in forward_methods() for node in ast.walk(method)):
        is_none = isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot))
        is_literal = isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
        assert not isinstance(node, OPERATORS) or is_none or is_literal, ast.unparse(node)
        if isinstance(node, ast.Call):
            own = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "self"
            assert own or ast.unparse(node.func).split(".")[-1] in ALLOWED, ast.unparse(node)
