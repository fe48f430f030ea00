"""Running the cases on a backend: what passes, what fails, what is reported as unsupported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from isoinfer.backends.cpu import plugin as cpu_plugin
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.ops import ALL_OPS, bind_reference
from isoinfer.conformance.op_cases import run_op_cases

FLOATS = (torch.float32, torch.bfloat16)


def _reference(name: str) -> Callable[[Any], Callable[..., Any]]:
    return lambda static: bind_reference(ALL_OPS[name], static)


def _run(backend: Any, *names: str, dtypes: Any = FLOATS) -> list[Any]:
    return run_op_cases(backend, [ALL_OPS[name] for name in names], dtypes, seed=0)


def test_a_backend_of_references_passes_every_case(make_backend: Callable[..., Any]) -> None:
    results = run_op_cases(make_backend(), dtypes=FLOATS)
    assert {result.op for result in results} == set(ALL_OPS)
    assert [(r.id, r.reason) for r in results if r.status != "passed"] == []
    assert all(result.provider == f"host.{result.op}" and result.verdict is not None for result in results)
    assert len({result.id for result in results}) == len(results)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_cpu_backend_passes_every_case_it_supports(deterministic: bool) -> None:
    (device,) = cpu_plugin.isoinfer_backend_probe()
    config = BackendConfig(deterministic=deterministic, threads=1)
    results = run_op_cases(cpu_plugin.isoinfer_backend_create(device=device, config=config))
    assert [(r.id, r.provider, r.reason, r.verdict) for r in results if r.status == "failed"] == []
    assert {r.op for r in results if r.status == "passed"} == set(ALL_OPS)
    assert all(r.reason for r in results if r.status == "unsupported")


def test_ops_over_logits_run_once_in_float32(make_backend: Callable[..., Any]) -> None:
    results = _run(make_backend(), "argmax", dtypes=(torch.bfloat16,))
    assert {result.dtype for result in results} == {"float32"}


def test_an_unknown_dtype_is_unsupported_with_a_reason(make_backend: Callable[..., Any]) -> None:
    (result,) = _run(make_backend(), "rms_norm", dtypes=(torch.float16,))
    assert (result.status, result.label) == ("unsupported", "*")
    assert result.reason == "dtype float16 is not among the backend's float32, bfloat16"


def test_what_a_backend_refuses_is_unsupported_and_never_run(make_backend: Callable[..., Any]) -> None:
    def never(static: Any) -> Any:
        raise AssertionError("bound although unsupported")

    refusal = {"linear": {"status": "unsupported", "reason": "no matrix unit"}}
    results = _run(make_backend({"linear": never}, refusal), "linear")
    assert {(r.status, r.reason) for r in results} == {("unsupported", "no matrix unit")}


def test_an_exception_fails_its_case_only(make_backend: Callable[..., Any]) -> None:
    def broken(static: Any) -> Any:
        raise RuntimeError("lost in bind")

    results = _run(make_backend({"rope": broken}), "rope", "silu_mul")
    assert {(r.status, r.reason) for r in results if r.op == "rope"} == {("failed", "RuntimeError: lost in bind")}
    assert {r.status for r in results if r.op == "silu_mul"} == {"passed"}


def test_changing_an_input_in_place_fails(make_backend: Callable[..., Any]) -> None:
    def mutating(static: Any) -> Any:
        def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            y = bind_reference(ALL_OPS["rms_norm"], static)(x, weight)
            x.copy_(y)  # the scratch space of a careless kernel
            return y

        return run

    results = _run(make_backend({"rms_norm": mutating}), "rms_norm")
    bad = [r for r in results if r.label != "zero-row"]
    assert {(r.status, r.reason) for r in bad} == {("failed", "changed x_TH, which it may not write")}


def test_changing_kv_while_attending_fails(make_backend: Callable[..., Any]) -> None:
    def mutating(static: Any) -> Any:
        def run(q: Any, kv: Any, plan: Any, sinks: Any, out: Any) -> None:
            bind_reference(ALL_OPS["paged_attention"], static)(q, kv, plan, sinks, out)
            kv.v_BSKD.nan_to_num_()  # cleans the poison up

        return run

    results = _run(make_backend({"paged_attention": mutating}), "paged_attention")
    assert {(r.status, r.reason) for r in results} == {("failed", "changed kv.v, which it may not write")}


def test_reading_slots_that_nobody_sees_fails(make_backend: Callable[..., Any]) -> None:
    def leaking(static: Any) -> Any:
        def run(q: Any, kv: Any, plan: Any, sinks: Any, out: Any) -> None:
            bind_reference(ALL_OPS["paged_attention"], static)(q, kv, plan, sinks, out)
            last = kv.v_BSKD[plan.block_table_RB[0, -1].long()]
            out += 0 * last.sum().to(out.dtype)  # a masked product over a whole block

        return run

    results = _run(make_backend({"paged_attention": leaking}), "paged_attention")
    assert {r.status for r in results} == {"failed"}


def test_an_output_left_unwritten_fails(make_backend: Callable[..., Any]) -> None:
    def lazy(static: Any) -> Any:
        def run(q: Any, kv: Any, plan: Any, sinks: Any, out: torch.Tensor) -> None:
            part = torch.empty_like(out)
            bind_reference(ALL_OPS["paged_attention"], static)(q, kv, plan, sinks, part)
            out[:-1] = part[:-1]

        return run

    assert {r.status for r in _run(make_backend({"paged_attention": lazy}), "paged_attention")} == {"failed"}


def test_declared_determinism_is_checked(make_backend: Callable[..., Any]) -> None:
    def jittery(static: Any) -> Any:
        calls = []

        def run(x: torch.Tensor) -> torch.Tensor:
            y = bind_reference(ALL_OPS["silu_mul"], static)(x)
            calls.append(None)
            y.view(torch.int32)[0, 0] ^= len(calls) % 2  # one last bit, in every other call
            return y

        return run

    results = _run(make_backend({"silu_mul": jittery}), "silu_mul", dtypes=(torch.float32,))
    reason = "declared deterministic, but out_TI differ between two runs"
    assert {(r.status, r.reason) for r in results} == {("failed", reason)}
    honest = {"silu_mul": {"deterministic": False}}
    results = _run(make_backend({"silu_mul": jittery}, honest), "silu_mul", dtypes=(torch.float32,))
    assert {r.status for r in results} == {"passed"}


def test_a_wrong_number_of_results_fails(make_backend: Callable[..., Any]) -> None:
    def silent(static: Any) -> Any:
        return lambda x: None

    results = _run(make_backend({"silu_mul": silent}), "silu_mul")
    assert all("returned 0 tensors" in r.reason and r.status == "failed" for r in results)


@pytest.mark.parametrize("name", ["rope", "kv_write", "rope_kv_write", "paged_attention"])
def test_strides_of_a_fused_projection_reach_the_backend(make_backend: Callable[..., Any], name: str) -> None:
    strided = []

    def looking(static: Any) -> Any:
        def run(*args: Any) -> Any:
            strided.append(any(isinstance(arg, torch.Tensor) and not arg.is_contiguous() for arg in args))
            return bind_reference(ALL_OPS[name], static)(*args)

        return run

    assert {r.status for r in _run(make_backend({name: looking}), name)} == {"passed"}
    assert any(strided)


def test_the_provider_sees_the_blocks_size_of_its_own_layout(make_backend: Callable[..., Any]) -> None:
    sizes = set()

    def looking(static: Any) -> Any:
        sizes.add(static.block_size)
        return _reference("kv_write")(static)

    _run(make_backend({"kv_write": looking}), "kv_write")
    assert sizes == {8}
