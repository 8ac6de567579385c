"""MobileNetV2 as a feature extractor, for pictures and pre-trained weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import nn

from fedmm.core.errors import FedmmError, require
from fedmm.models.network import BatchNormPolicy, Centring
from fedmm.models.zoo import Model, require_image, require_widths


@dataclass(frozen=True)
class MobileNetV2(Model):
    """torchvision's MobileNetV2 with a bottleneck layer, as in the paper's Office-31 experiments.

    weights: a safetensors file with torchvision's names, such as a pre-trained one; without it the start is random.
    bottleneck: width of the layer between the backbone's 1,280 features and the heads.
    """

    name: ClassVar[str] = "mobilenet_v2"
    summary: ClassVar[str] = "MobileNetV2 with a bottleneck, random or from a weights file"

    task_hidden: tuple[int, ...] = ()
    adversary_hidden: tuple[int, ...] = (256,)
    centre: Centring = "none"
    batch_norm: BatchNormPolicy = "frozen"
    weights: str = ""
    bottleneck: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require_widths("bottleneck", self.bottleneck)
        require(
            not self.weights or self.initialisation == "torch",
            f"initialisation must be 'torch' with weights from a file, which {self.initialisation!r} would overwrite",
        )

    def features(self, shape: tuple[int, ...]) -> nn.Module:
        require_image(self.name, shape)
        require(shape[0] == 3, f"model {self.name!r} takes pictures of 3 channels, not of {shape[0]}")
        try:
            from torchvision.models import mobilenet_v2  # noqa: PLC0415 - an optional dependency
        except ImportError as problem:
            raise FedmmError("model 'mobilenet_v2' needs torchvision: pip install 'fedmm[vision]'") from problem
        backbone = mobilenet_v2(weights=None)
        if self.weights:
            _load(backbone, Path(self.weights))
        return nn.Sequential(
            backbone.features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, self.bottleneck), nn.ReLU()
        )


def _load(backbone: nn.Module, path: Path) -> None:
    from safetensors.torch import load_file  # noqa: PLC0415 - only where weights are read

    try:
        backbone.load_state_dict(load_file(path), strict=True)
    except Exception as problem:
        reason = str(problem).splitlines()[0]
        raise FedmmError(
            f"{path} cannot be read as MobileNetV2 weights with torchvision's names: {reason}"
        ) from problem
