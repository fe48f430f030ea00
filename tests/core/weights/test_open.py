from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from isoinfer.errors import CheckpointError
from isoinfer.weights.open import open_checkpoint


def test_opens_a_folder(hf_folder: Path) -> None:
    checkpoint = open_checkpoint(str(hf_folder))
    assert checkpoint.path == str(hf_folder)
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}


def test_missing_path_names_the_nearest(hf_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Nearest names.*tiny-model"):
        open_checkpoint(str(hf_folder.parent / "tiny-modle"))


def test_missing_parent(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="parent folder"):
        open_checkpoint(str(tmp_path / "no" / "model"))


def test_folder_without_config_points_to_what_is_in_it(hf_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json.*tiny-model/config\.json"):
        open_checkpoint(str(hf_folder.parent))


def test_file_of_another_kind(hf_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not a \.gguf file"):
        open_checkpoint(str(hf_folder / "model.safetensors"))


def test_gguf_suffix_without_gguf_content(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model at all")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_checkpoint(str(path))


def test_empty_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_checkpoint(str(tmp_path / "model.gguf"))


def test_home_is_expanded(hf_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(hf_folder.parent))
    assert open_checkpoint("~/tiny-model").tensors


def test_gguf_is_known_by_content_too(hf_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(CheckpointError, match="damaged or truncated GGUF"):
        open_checkpoint(str(path))
    shutil.rmtree(hf_folder)
