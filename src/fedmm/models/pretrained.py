"""Pre-trained weights from a file, or torchvision's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedmm.core.errors import FedmmError, require
from fedmm.core.paths import data_folder


def load_weights(module: nn.Module, given: str, normalise: str) -> None:
    """Give a torchvision module the weights of a file: safetensors, or a state dict as torch saves it.

    given: its path; a relative one is looked for from the current folder, then in the data folder.
    normalise: how the input is scaled, refused where a safetensors file says that it needs another.
    """
    path = _found(given)
    try:
        weights, about = _read(path)
        module.load_state_dict(weights, strict=True)
    except Exception as problem:
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise FedmmError(
            f"{path} cannot be read as MobileNetV2 weights with torchvision's names: {reason}"
        ) from problem
    needs_half = "mean=0.5" in about.get("input", "").replace(" ", "")
    require(
        not needs_half or normalise == "half",
        f"{path} needs pictures normalised by mean=0.5, std=0.5: set normalise to 'half', not {normalise!r}",
    )


_CLASSIFIERS = ("classifier", "fc.", "head.", "head_dist.", "heads.", "last_linear.")


def load_backbone(module: nn.Module, given: str, backbone: str) -> None:
    """Give a module the weights of a file with its own names; those of a classifier that was taken off are left out.

    given: as in :func:`load_weights`.
    """
    path = _found(given)
    try:
        weights: Mapping[str, Any] = _read(path)[0]
        for inside in ("state_dict", "model"):
            weights = weights[inside] if isinstance(weights.get(inside), Mapping) else weights
        wanted = module.state_dict()
        used = {name: tensor for name, tensor in weights.items() if name in wanted or not name.startswith(_CLASSIFIERS)}
        module.load_state_dict(used, strict=True)
    except Exception as problem:
        lines = (str(problem).strip() or type(problem).__name__).splitlines()
        reason = " ".join(line.strip() for line in lines[:2])[:300]
        raise FedmmError(f"{path} cannot be read as weights of {backbone!r}: {reason}") from problem


def _found(given: str) -> Path:
    here = Path(given).expanduser()
    there = data_folder() / here
    return there if not here.exists() and there.exists() else here


def _read(path: Path) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    if path.suffix in (".pth", ".pt"):
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return weights, {}
    from safetensors import safe_open  # noqa: PLC0415 - only where weights are read

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def torchvisions_own(weights: Any) -> dict[str, Tensor]:
    """The state dict of one of torchvision's ``Weights``, downloaded where it is not kept already."""
    try:
        state: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True)
    except Exception as problem:
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise FedmmError(
            f"torchvision's weights cannot be had from {weights.url} ({reason}); name a file with model.weights instead"
        ) from problem
    return state
