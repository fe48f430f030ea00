"""Writes a GGUF file as a Hugging Face folder in bfloat16, for engines that read no GGUF: GGUF FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from isoinfer.weights.open import open_checkpoint

checkpoint, folder = open_checkpoint(sys.argv[1]), Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
tensors = {name: checkpoint.load(name).to(torch.bfloat16).contiguous() for name in checkpoint.tensors}
save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
config = {**checkpoint.config, "torch_dtype": "bfloat16"}
(folder / "config.json").write_text(json.dumps(config, indent=1))
