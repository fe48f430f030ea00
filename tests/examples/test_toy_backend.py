"""The example plugin, installed as a user would, seen by a fresh interpreter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "toy_backend"

TABLE = """
import json, sys
from pathlib import Path
from isoinfer.backends.registry import Registry

registry = Registry.load(cache_dir=Path(sys.argv[1]), time_limit=60.0)
rows = {row.backend: [row.distribution, row.version, row.device, row.score, row.status] for row in registry.devices()}
loaded = [name for name in ("torch", "isoinfer_toy") if name in sys.modules]
print(json.dumps({"rows": rows, "loaded": loaded, "auto": registry.select("auto").name}))
"""

USE = """
import json
import numpy as np
import torch
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.interface import KVSpec
from isoinfer.backends.ops import RMS_NORM, SILU_MUL
from isoinfer.backends.registry import create_backend

backend = create_backend("toy:host", BackendConfig(dtype="float32", threads=1, options={"native": "off"}))

samples = [sample for dtype in (torch.float32, torch.bfloat16) for sample in SILU_MUL.samples(dtype, 0)]
def is_right(sample):
    truth = SILU_MUL.reference(sample.static, sample.args[0].double())
    mine = backend.bind(SILU_MUL, sample.static)(*sample.args)
    eps = torch.finfo(mine.dtype).eps
    return mine.dtype == sample.args[0].dtype and torch.allclose(mine.double(), truth, rtol=4 * eps, atol=4 * eps)

norm = next(RMS_NORM.samples(torch.float32, 0))
normed = backend.bind(RMS_NORM, norm.static)(*norm.args)
kv = backend.allocate_kv([KVSpec(name="kv", layers=(0,), num_kv_heads=2, head_dim=4, dtype="float32")], [3])
k, v = torch.randn(2, 1, kv.layer(0).block_size, 2, 4)
backend.import_blocks(kv, 0, np.array([1], dtype=np.int32), k, v)
back = backend.export_blocks(kv, 0, np.array([1], dtype=np.int32))
print(json.dumps({
    "name": backend.name,
    "device": backend.info.id,
    "providers": [backend.support(op, s.static).provider for op, s in ((SILU_MUL, samples[0]), (RMS_NORM, norm))],
    "candidates": [answer.provider for answer in backend.supports(SILU_MUL, samples[0].static)],
    "own": backend.bind(SILU_MUL, samples[0].static).__module__,
    "right": [is_right(sample) for sample in samples],
    "norm": torch.allclose(normed, RMS_NORM.reference(norm.static, *norm.args)),
    "kv": [torch.equal(back[0], k), torch.equal(back[1], v)],
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin, built from a copy of its source (building leaves files) and installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("toy")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--target", str(folder / "site"), str(source)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return folder / "site"


def _run(site: Path, code: str, *args: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_registry_finds_it_and_loads_nothing_of_it(site: Path, tmp_path: Path) -> None:
    seen = _run(site, TABLE, str(tmp_path))
    assert seen["rows"]["toy"] == ["isoinfer-toy-backend", "0.1.0", "host", -100, "available"]
    assert seen["rows"]["cpu"][4] == "available"
    assert seen["auto"] != "toy"
    assert seen["loaded"] == []


def test_it_computes(site: Path) -> None:
    seen = _run(site, USE)
    assert (seen["name"], seen["device"]) == ("toy", "host")
    assert seen["own"] == "isoinfer_toy.backend"
    assert seen["providers"][0] == "toy.silu_mul"
    assert seen["providers"][1] != "toy.silu_mul"
    assert seen["candidates"][0] == "toy.silu_mul"
    assert len(seen["candidates"]) > 1
    assert seen["right"]
    assert all(seen["right"])
    assert seen["norm"]
    assert seen["kv"] == [True, True]
