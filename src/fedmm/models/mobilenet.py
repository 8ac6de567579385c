"""MobileNetV2 as a feature extractor, for pictures and pre-trained weights."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from fedmm.core.errors import FedmmError, require
from fedmm.core.validation import at_least, one_of, within
from fedmm.models.network import BatchNormPolicy, Centring
from fedmm.models.pretrained import load_weights, torchvisions_own
from fedmm.models.zoo import Model, require_image, require_widths

Normalising = Literal["imagenet", "half", "none"]
BLOCKS = 19
"""Parts of the backbone, from the first convolution to the last."""

MEAN_AND_STD = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


class Normalise(nn.Module):
    """(x - mean) / std in each channel of pictures ``[rows, C, H, W]``."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self._said = f"mean={mean}, std={std}"
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return self._said


@dataclass(frozen=True)
class MobileNetV2(Model):
    """torchvision's MobileNetV2 with a bottleneck layer, as in the paper's Office-31 experiments.

    The parts of ``features`` are ``normalise``, ``backbone``, ``pool``, ``flatten``, ``bottleneck``, ``relu`` and
    ``dropout``, so that the backbone's learning rate is that of the group ``features.backbone``.

    weights: ``imagenet`` for torchvision's own, or a safetensors or .pth file with torchvision's names, looked for from
        the current folder and then in the data folder; without it the start is random.
    normalise: what the first layer does to pictures in [0, 1]: ImageNet's mean and deviation, as torchvision's own
        weights need, ``half``: mean 0.5 and deviation 0.5, as Keras's need, or nothing.
    frozen_blocks: the first so many of the backbone's 19 blocks are never changed, and no part of what is sent.
    bottleneck: width of the layer between the backbone's 1,280 features and the heads; bottleneck_dropout: after it.
    """

    name: ClassVar[str] = "mobilenet_v2"
    summary: ClassVar[str] = "MobileNetV2 with a bottleneck, random or from a weights file"
    paths: ClassVar[tuple[str, ...]] = ("weights",)

    task_hidden: tuple[int, ...] = ()
    adversary_hidden: tuple[int, ...] = (256,)
    centre: Centring = "none"
    batch_norm: BatchNormPolicy = "frozen"
    weights: str = ""
    normalise: Normalising = "imagenet"
    frozen_blocks: int = 0
    bottleneck: int = 256
    bottleneck_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_widths("bottleneck", self.bottleneck)
        within("bottleneck_dropout", self.bottleneck_dropout, 0.0, 0.99)
        one_of("normalise", self.normalise, get_args(Normalising))
        at_least("frozen_blocks", self.frozen_blocks, 0)
        require(self.frozen_blocks <= BLOCKS, f"frozen_blocks must be at most {BLOCKS}, not {self.frozen_blocks}")
        require(
            not self.frozen_blocks or self.batch_norm == "frozen",
            f"batch_norm must be 'frozen' with frozen_blocks, whose statistics {self.batch_norm!r} would change",
        )
        require(
            not self.weights or self.initialisation == "torch",
            f"initialisation must be 'torch' with weights from a file, which {self.initialisation!r} would overwrite",
        )

    def untrained(self) -> MobileNetV2:
        return replace(self, weights="")

    def features(self, shape: tuple[int, ...]) -> nn.Module:
        require_image(self.name, shape)
        require(shape[0] == 3, f"model {self.name!r} takes pictures of 3 channels, not of {shape[0]}")
        backbone = self._backbone()
        for block in list(backbone)[: self.frozen_blocks]:
            block.requires_grad_(False)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if self.normalise != "none":
            parts["normalise"] = Normalise(*MEAN_AND_STD[self.normalise])
        parts["backbone"] = backbone
        parts["pool"] = nn.AdaptiveAvgPool2d(1)
        parts["flatten"] = nn.Flatten()
        parts["bottleneck"] = nn.Linear(1280, self.bottleneck)
        parts["relu"] = nn.ReLU()
        if self.bottleneck_dropout:
            parts["dropout"] = nn.Dropout(self.bottleneck_dropout)
        return nn.Sequential(parts)

    def _backbone(self) -> nn.Sequential:
        try:
            from torchvision.models import MobileNet_V2_Weights, mobilenet_v2  # noqa: PLC0415 - an optional dependency
        except ImportError as problem:
            raise FedmmError("model 'mobilenet_v2' needs torchvision: pip install 'fedmm[vision]'") from problem
        whole = mobilenet_v2(weights=None)
        if self.weights == "imagenet":
            whole.load_state_dict(torchvisions_own(MobileNet_V2_Weights.IMAGENET1K_V1))
        elif self.weights:
            load_weights(whole, self.weights, self.normalise)
        assert isinstance(whole.features, nn.Sequential)
        return whole.features
