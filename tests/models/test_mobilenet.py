"""MobileNetV2: what it refuses, and weights from a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedmm import FedmmError
from fedmm.models.mobilenet import MobileNetV2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weights": "w.safetensors", "initialisation": "truncated_normal"},
            "initialisation must be 'torch' with weights from a file, which 'truncated_normal' would overwrite",
        ),
        ({"bottleneck": 0}, "bottleneck must be at least 1, not 0"),
        ({"bottleneck": 10**12}, "bottleneck must be at most 1000000, not 1000000000000"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError, match=f"^{re.escape(message)}$"):
        MobileNetV2(**options)


@pytest.mark.parametrize("shape", [(2,), (1, 32, 32), (4, 32, 32)])
def test_it_takes_pictures_of_three_channels_alone(shape: tuple[int, ...]) -> None:
    with pytest.raises(FedmmError, match=r"^model 'mobilenet_v2' takes pictures"):
        MobileNetV2().build(shape, 3, seed=0)


def test_weights_from_a_file_are_the_start_of_the_backbone(tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    weights = {name: tensor.clone() for name, tensor in models.mobilenet_v2(weights=None).state_dict().items()}
    save_file(weights, tmp_path / "w.safetensors")
    built = MobileNetV2(weights=str(tmp_path / "w.safetensors")).build((3, 32, 32), 3, seed=0)
    backbone = built.features[0].state_dict()  # type: ignore[index]
    assert all(torch.equal(backbone[name], weights[f"features.{name}"]) for name in backbone)


def test_a_file_that_holds_no_weights_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(FedmmError, match="nowhere cannot be read as MobileNetV2 weights with torchvision's names"):
        MobileNetV2(weights=str(tmp_path / "nowhere")).build((3, 32, 32), 3, seed=0)
