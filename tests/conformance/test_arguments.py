"""Names and copies of arguments."""

from __future__ import annotations

import torch

from isoinfer.backends.ops import ALL_OPS, LINEAR
from isoinfer.conformance.arguments import argument_names, copies, float64_copies, result_names, truth


def test_names_come_from_the_signature() -> None:
    route = ALL_OPS["moe_route"]
    assert argument_names(route) == ["logits_TE"]
    assert result_names(route) == ["weights_TX", "ids_TX"]
    assert result_names(ALL_OPS["rope"]) == []


def test_the_truth_leaves_the_arguments_alone() -> None:
    for name in ("rope", "kv_write", "add_rms_norm"):
        for sample in ALL_OPS[name].samples(torch.float32, 0):
            before = copies(sample.args)
            results = truth(ALL_OPS[name], sample.static, sample.args)
            assert all(tensor.dtype == torch.float64 for tensor in results.values())
            pairs = zip(before, sample.args, strict=True)
            assert all(torch.equal(a, b) for a, b in pairs if isinstance(a, torch.Tensor))


def test_quantised_integers_are_not_widened() -> None:
    sample = next(s for s in LINEAR.samples(torch.bfloat16, 0) if s.label == "int8")
    x, weight, _ = float64_copies(sample.args)
    assert (x.dtype, weight.q_NK.dtype, weight.scale_N.dtype) == (torch.float64, torch.int8, torch.float64)
