"""Every Ascend kernel under Triton's interpreter on its op's own cases, in float16 and float32."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import ModuleType

import pytest
import torch

from isoinfer.backends.ascend.plan import AttentionPlanner
from isoinfer.backends.ascend.providers import kernel_module
from isoinfer.backends.ascend.soc import Soc, assumed
from isoinfer.backends.descriptor import DeviceInfo
from isoinfer.backends.evidence import check_claims
from isoinfer.backends.interface import Capabilities
from isoinfer.backends.ops import (
    ALL_OPS,
    ActivationSpec,
    CanonicalKV,
    GatherSpec,
    NormSpec,
    OpSpec,
    RopeKVWriteSpec,
    RopeSpec,
    Sample,
    dtype_name,
)
from isoinfer.backends.ops.rope import rope_inputs
from isoinfer.backends.provider import Provider, ProviderTable
from isoinfer.backends.torch_device.backend import TorchDeviceBackend
from isoinfer.backends.torch_device.kv import PagedKVStore
from isoinfer.backends.torch_device.runtime import HostRuntime
from isoinfer.backends.torch_device.triton_launcher import TritonLauncher
from isoinfer.conformance.interpreted import require_interpreter
from isoinfer.conformance.op_cases import run_case, run_op_cases

pytestmark = [pytest.mark.gate, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

DTYPES = (torch.float32, torch.float16)
WANTED = {
    *("rms_norm", "add_rms_norm", "silu_mul", "swiglu_clipped", "rope", "kv_write", "rope_kv_write"),
    *("embedding", "gather_rows", "paged_attention"),
    *("argmax", "sample", "mask_logits", "bias_logits", "penalize"),
}
SERVED = [name for name in ALL_OPS if kernel_module(name) is not None]


def kernels_alone(soc: Soc) -> TorchDeviceBackend:
    """A backend of our kernels only: no fused operators before them and no torch behind them."""
    runtime = HostRuntime()

    def find(op: OpSpec) -> list[Provider]:
        module = kernel_module(op.name)
        assert isinstance(module, ModuleType)
        make = partial(getattr(module, f"make_{op.name}"), soc=soc, launcher=TritonLauncher())
        return [Provider(name="triton", refuse=module.refuse, make=make)]

    return TorchDeviceBackend(
        name="ascend",
        info=DeviceInfo(id="0", description=f"Ascend {soc.name}, interpreted", score=0),
        capabilities=Capabilities(
            dtypes=("float32", "float16"), default_dtype="float32", kernel_block_sizes=(128,), host_lengths=True
        ),
        collective_backend="gloo",
        runtime=runtime,
        table=ProviderTable("ascend", find, fallback="fail"),
        kv_store=PagedKVStore(device=runtime.device, block_size=128, num_scratch_blocks=1),
        plan=AttentionPlanner(empty=runtime.empty, host_buffer=runtime.host_buffer).plan,
        lines=(),
    )


def test_the_interpreter_is_on_and_all_kernels_are_there() -> None:
    require_interpreter()
    assert set(SERVED) >= WANTED
    check_claims("ascend", "interpreted", {(name, "triton") for name in SERVED})  # each of them is a test below


@pytest.mark.parametrize("name", SERVED)
def test_the_cases_of_the_op_pass(name: str) -> None:
    backend = kernels_alone(assumed("910B"))
    for seed in range(3):
        results = run_op_cases(backend, [ALL_OPS[name]], dtypes=DTYPES, seed=seed)
        assert results
        assert [f"{r.id}: {r.reason}" for r in results if (r.provider, r.status) != ("triton", "passed")] == []


def _long_samples(dtype: torch.dtype) -> Iterator[tuple[str, Sample]]:
    """What the ops' own cases lack: rows longer than a tile, more heads than a tile, more rows than cores."""
    gen, name = torch.Generator().manual_seed(5), dtype_name(dtype)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen).to(dtype)

    norm = NormSpec(hidden_size=9001, eps=1e-6, dtype=name)
    yield "rms_norm", Sample(label="long", static=norm, args=(random(3, 9001), random(9001)))
    yield "add_rms_norm", Sample(label="long", static=norm, args=(random(3, 9001), random(3, 9001), random(9001)))
    head = NormSpec(hidden_size=64, eps=1e-6, dtype=name)
    yield "rms_norm", Sample(label="many", static=head, args=(random(2600, 64), random(64)))
    wide = ActivationSpec(intermediate_size=5001, dtype=name)
    yield "silu_mul", Sample(label="long", static=wide, args=(random(2, 10002),))
    rows_R = torch.tensor([3, 0], dtype=torch.int32)
    yield "gather_rows", Sample(label="long", static=GatherSpec(width=9001, dtype=name), args=(random(4, 9001), rows_R))
    q, k, v, positions, table = rope_inputs(gen, dtype, (2, 19, 17, 80), 64)
    spec = RopeSpec(head_dim=80, rotary_dim=64, interleaved=False, dtype=name)
    yield "rope", Sample(label="heads", static=spec, args=(q, k, positions, table))
    static = RopeKVWriteSpec(rope=spec, num_kv_heads=17, head_dim=80, block_size=128, dtype=name)
    kv = CanonicalKV(random(2, 128, 17, 80), random(2, 128, 17, 80))
    slots = torch.tensor([200, 7], dtype=torch.int32)
    yield "rope_kv_write", Sample(label="heads", static=static, args=(q, k, v, positions, table, kv, slots))
    yield "kv_write", Sample(label="heads", static=static.kv_write, args=(k, v, kv, slots))


@pytest.mark.parametrize("chip", ["910B", "950"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_does_not_fit_one_tile(chip: str, dtype: torch.dtype) -> None:
    backend = kernels_alone(assumed(chip))
    for name, sample in _long_samples(dtype):
        result = run_case(backend, ALL_OPS[name], sample, dtype_name(dtype))
        assert (result.provider, result.status) == ("triton", "passed"), f"{result.id}: {result.reason}"
