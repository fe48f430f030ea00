"""CPU backends with options, one thread each; the same options give the same backend again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isoinfer.backends.cpu import plugin
from isoinfer.backends.descriptor import BackendConfig

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def open_backend() -> Open:
    """open_backend(dtype="float32", deterministic=False, threads=1, **options)"""
    opened: dict[str, Any] = {}

    def open_(
        dtype: str = "float32",
        deterministic: bool = False,
        threads: int = 1,
        fallback: str = "composed",
        **options: str,
    ) -> Any:
        key = repr((dtype, deterministic, threads, fallback, sorted(options.items())))
        if key not in opened:
            (device,) = plugin.isoinfer_backend_probe()
            config = BackendConfig(
                dtype=dtype, deterministic=deterministic, threads=threads, fallback=fallback, options=options
            )
            opened[key] = plugin.isoinfer_backend_create(device, config)
        return opened[key]

    return open_


@pytest.fixture
def need_bfloat16(open_backend: Open) -> None:
    """Skip where this machine has no bfloat16 kernels of ours."""
    if not open_backend()._native.bfloat16:
        pytest.skip("this machine has no AVX512_BF16, so our bfloat16 kernels are not built")


@pytest.fixture
def need_native(open_backend: Open) -> None:
    """Skip where there are no native kernels at all."""
    if open_backend()._native.library is None:
        pytest.skip(f"no native kernels here: {open_backend()._native.reason}")
