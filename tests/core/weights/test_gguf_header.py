from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from isoinfer.errors import CheckpointError
from isoinfer.weights.gguf_header import read_gguf_header

METADATA = {
    "llama.block_count": 2,
    "llama.rope.freq_base": 0.5,
    "tokenizer.ggml.add_bos_token": True,
    "general.name": "Ünïcode",
    "tokenizer.ggml.tokens": ["a", "", "ĠĠ", "🎉"],
    "tokenizer.ggml.token_type": [1, 2, 3, 4],
    "tokenizer.ggml.scores": [0.0, -1.0, 0.25],
}


@pytest.fixture
def path(write_gguf: Callable[..., Path]) -> Path:
    tensors = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 4),
        "y": (np.zeros((2, 2, 34), np.uint8), gguf.GGMLQuantizationType.Q8_0),
        "z": np.ones(5, np.float16),
    }
    return write_gguf("llama", METADATA, tensors)


def test_metadata(path: Path) -> None:
    read = read_gguf_header(path).metadata
    assert {key: read[key] for key in METADATA} == METADATA
    assert read["general.architecture"] == "llama"


def test_tensors_equal_the_gguf_packages_reader(path: Path) -> None:
    tensors = read_gguf_header(path).tensors
    assert tensors["y"].shape == (2, 2, 32)
    for theirs in gguf.GGUFReader(path).tensors:
        ours = tensors[theirs.name]
        assert ours.shape == tuple(reversed(theirs.shape.tolist()))
        assert (ours.kind, ours.offset, ours.nbytes) == (theirs.tensor_type, theirs.data_offset, theirs.n_bytes)


def test_every_truncation_is_a_clear_error(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    short = tmp_path / "short.gguf"
    end = max(tensor.offset + tensor.nbytes for tensor in read_gguf_header(path).tensors.values())
    for size in [*range(4, end, 7), end - 1]:
        short.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match="damaged or truncated"):
            read_gguf_header(short)


def test_wrong_magic(path: Path) -> None:
    path.write_bytes(b"GGML" + path.read_bytes()[4:])
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        read_gguf_header(path)


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_unknown_version(path: Path, version: int) -> None:
    path.write_bytes(b"GGUF" + struct.pack("<I", version) + path.read_bytes()[8:])
    with pytest.raises(CheckpointError, match=f"version {version}"):
        read_gguf_header(path)


def test_absurd_counts_do_not_hang(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:8] + struct.pack("<QQ", 2**60, 2**60) + data[24:])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        read_gguf_header(path)


def test_unknown_tensor_type(path: Path) -> None:
    entry = b"x" + struct.pack("<IQQI", 2, 4, 3, 0)
    data = path.read_bytes()
    assert data.count(entry) == 1
    path.write_bytes(data.replace(entry, entry[:-4] + struct.pack("<I", 999)))
    with pytest.raises(CheckpointError, match="tensor x has the unknown type 999"):
        read_gguf_header(path)
