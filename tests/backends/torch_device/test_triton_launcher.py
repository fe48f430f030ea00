"""What a launcher compiles at `prepare` is of the types that the case says."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from triton._C.libtriton import native_specialize_impl
from triton.backends.nvidia.compiler import CUDABackend

from isoinfer import kernels_cuda
from isoinfer.backends.torch_device.triton_launcher import _stand_in
from isoinfer.conformance.kernel_files import claims, modules


def test_stand_ins_have_the_types_of_every_signature() -> None:
    kinds = {
        kind for module in modules(kernels_cuda) for claim in claims(module, 90) for _, kind in claim.case.signature
    }
    assert any(kind.startswith("tensordesc<bf16[") for kind in kinds)
    for kind in kinds:
        seen, divisible = native_specialize_impl(CUDABackend, _stand_in(kind), False, True, True)
        assert seen.replace(" ", "") == kind.partition(":")[0]
        assert divisible == "D" or not kind.endswith(":16")
