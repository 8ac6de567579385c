"""The exact contents of a saved model; files are not compared directly because their metadata may be in any order."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file


def model_in(path: Path) -> dict[str, tuple[object, ...]]:
    """Return every tensor's dtype, shape and bytes. path: a model file, or a run's folder with one."""
    file = path / "model.safetensors" if path.is_dir() else path
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in load_file(file).items()
    }
