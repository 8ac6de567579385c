"""What is in a saved model, to the bit. Its file may list what it says of itself in any order."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file


def model_in(path: Path) -> dict[str, tuple[object, ...]]:
    """Every tensor's dtype, shape and bytes, of a model's file or of the one in a run's folder."""
    file = path / "model.safetensors" if path.is_dir() else path
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in load_file(file).items()
    }
