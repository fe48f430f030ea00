"""Every op is a complete declaration: samples, names, references that write what they say and nothing else."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import torch

from isoinfer.backends.ops import ALL_OPS, CanonicalKV, OpSpec, bind_reference
from isoinfer.conformance.arguments import argument_names, copies, outcome, result_names

OPS = pytest.mark.parametrize("op", ALL_OPS.values(), ids=lambda op: op.name)


@OPS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_op_has_samples_that_its_reference_runs(op: OpSpec, dtype: torch.dtype) -> None:
    samples = list(op.samples(dtype, 0))
    assert samples
    assert len({sample.label for sample in samples}) == len(samples)
    for sample in samples:
        assert isinstance(sample.static, op.static_type)
        results = outcome(op, sample.static, copies(sample.args))
        assert results
        assert not any(tensor.isnan().any() for tensor in results.values() if tensor.is_floating_point())


@OPS
def test_the_reference_changes_only_what_the_op_writes(op: OpSpec) -> None:
    for sample in op.samples(torch.float32, 1):
        args = copies(sample.args)
        bind_reference(op, sample.static)(*args)
        for name, before, after in zip(argument_names(op), sample.args, args, strict=True):
            if isinstance(before, torch.Tensor) and name not in (*op.writes, *op.clobbers):
                assert torch.equal(before, after), name
            if isinstance(before, CanonicalKV) and name not in op.writes:
                torch.testing.assert_close(before.k_BSKD, after.k_BSKD, rtol=0, atol=0, equal_nan=True)


@OPS
def test_samples_depend_only_on_the_seed(op: OpSpec) -> None:
    first, again = (list(op.samples(torch.float32, 3)) for _ in range(2))
    assert [sample.static for sample in first] == [sample.static for sample in again]
    for one, other in zip(first, again, strict=True):
        tensors = [(a, b) for a, b in zip(one.args, other.args, strict=True) if isinstance(a, torch.Tensor)]
        assert tensors
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in tensors)


@OPS
def test_the_signature_names_the_arguments_of_the_reference(op: OpSpec) -> None:
    parameters = list(inspect.signature(op.reference).parameters)
    assert parameters[1:] == argument_names(op)
    assert parameters[0] == "static"
    assert op.signature.startswith(f"{op.name}(")
    assert set(op.writes) | set(op.clobbers) <= set(argument_names(op))
    assert bool(op.writes) or bool(result_names(op))
    assert fields(op.static_type)


@OPS
def test_what_is_not_required_can_be_composed(op: OpSpec) -> None:
    if op.required or op.name == "moe_experts":  # its weights are opaque: nothing to compose it from
        assert op.decomposition is None
        return
    assert op.decomposition is not None
    for sample in op.samples(torch.float32, 2):
        expected = outcome(op, sample.static, copies(sample.args))
        args = copies(sample.args)
        composed = op.decomposition(bind_reference, sample.static)
        returned = composed(*args)
        named = dict(zip(argument_names(op), args, strict=True))
        values = returned if isinstance(returned, tuple) else (returned,)
        got = dict(zip(result_names(op), values, strict=False)) | {n: named[n] for n in op.writes if n != "kv"}
        if "kv" in op.writes:
            got |= {"kv.k": named["kv"].k_BSKD, "kv.v": named["kv"].v_BSKD}
        assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_paged_samples_use_the_block_size_they_are_given() -> None:
    paged = [op for op in ALL_OPS.values() if op.paged_samples is not None]
    assert {op.name for op in paged} == {"kv_write", "rope_kv_write", "paged_attention"}
    for op in paged:
        assert op.paged_samples is not None
        for sample in op.paged_samples(torch.float32, 0, 64):
            assert sample.static.block_size == 64
            assert {arg.block_size for arg in sample.args if isinstance(arg, CanonicalKV)} == {64}


def test_bind_reference_refuses_a_spec_of_another_op() -> None:
    sample = next(iter(ALL_OPS["rms_norm"].samples(torch.float32, 0)))
    with pytest.raises(AssertionError, match="rope takes RopeSpec"):
        bind_reference(ALL_OPS["rope"], sample.static)
