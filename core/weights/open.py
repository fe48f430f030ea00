"""Opening a checkpoint by its path: a Hugging Face folder or a GGUF file. Only headers are read."""

from __future__ import annotations

import difflib
from pathlib import Path

from isoinfer.errors import CheckpointError
from isoinfer.weights.checkpoint import Checkpoint
from isoinfer.weights.gguf_file import GGUFCheckpoint
from isoinfer.weights.hf import HFCheckpoint


def open_checkpoint(path: str) -> Checkpoint:
    """The checkpoint at `path`: a folder with config.json and *.safetensors, or a .gguf file.

    CheckpointError, saying what to do, if it is missing, incomplete, damaged or of an unsupported kind.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise CheckpointError(_missing(place))
    if place.is_file():
        return _open_file(place)
    if not (place / "config.json").is_file():
        raise CheckpointError(_no_config(place))
    return HFCheckpoint(place)


def _open_file(path: Path) -> Checkpoint:
    if path.suffix == ".gguf" or _starts_with_magic(path):
        return GGUFCheckpoint(path)
    raise CheckpointError(f"{path} is not a .gguf file. Give a .gguf file, or the folder that holds config.json.")


def _starts_with_magic(path: Path) -> bool:
    """Whether it is GGUF under another name, as in a download cache."""
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _missing(path: Path) -> str:
    parent = path.absolute().parent
    if not parent.is_dir():
        return f"No model at {path}: its parent folder {parent} does not exist either. Check the path."
    names = sorted(entry.name for entry in parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    hint = f"Nearest names in {parent}: {', '.join(near)}." if near else f"Nothing in {parent} has a similar name."
    return f"No model at {path}. {hint} A model is a local folder or .gguf file; nothing is downloaded."


def _no_config(folder: Path) -> str:
    inside = sorted(str(path.relative_to(folder)) for path in (*folder.glob("*.gguf"), *folder.glob("*/config.json")))
    hint = f" Did you mean {', '.join(inside[:5])} in it?" if inside else ""
    return f"{folder} has no config.json, so it is no model folder.{hint} Give the folder that holds config.json."
