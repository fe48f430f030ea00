"""Every case of every CUDA kernel, compiled to sm_90, sm_100 and sm_103 cubins, against kernels_cuda/compiled.json."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

TABLE = Path(__file__).resolve().parents[2] / "kernels_cuda" / "compiled.json"


def test_every_kernel_compiles_without_a_spill_and_as_the_table_says() -> None:
    """A failure prints every fault. `scripts/compile-table` writes the table anew."""
    if sys.platform != "linux":
        pytest.skip("triton is for Linux")
    import triton

    from isoinfer import kernels_cuda
    from isoinfer.backends.cuda.providers import KERNEL_OPS
    from isoinfer.backends.evidence import check_claims
    from isoinfer.backends.probe_cache import default_cache_dir
    from isoinfer.conformance.compiled_table import all_claims, compile_claims, differences, faults, read_table
    from isoinfer.conformance.cubin import TARGETS
    from isoinfer.conformance.kernel_files import uncovered

    version, table = read_table(TABLE)
    assert version == triton.__version__, "the table is another compiler's: write it anew with scripts/compile-table"
    wanted, cache = all_claims(kernels_cuda), default_cache_dir()
    cubins, errors = compile_claims(wanted, cache and cache / "cubins")
    missing = [line for target in TARGETS for line in uncovered(kernels_cuda, target)]
    wrong = [*missing, *errors, *faults(cubins, wanted), *differences(table, cubins)]
    assert not wrong, "\n".join(wrong)
    check_claims("cuda", "compiled", {(op, "triton") for op in KERNEL_OPS})
    print(f"compiled: {len(cubins)} cubins")
