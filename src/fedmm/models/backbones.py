"""Feature extractors from timm, torchvision or your own code, and MobileNetV2 as in the paper."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from fedmm.core.errors import FedmmError, first_line, require
from fedmm.core.validation import at_least, flag, one_of, within
from fedmm.models.network import BatchNormPolicy, Centring
from fedmm.models.pretrained import Imported, import_backbone, load_backbone, load_weights, torchvisions_own
from fedmm.models.zoo import Model, require_image, require_widths

Normalising = Literal["imagenet", "half", "none"]
AutoNormalising = Literal["auto", "imagenet", "half", "none"]
BLOCKS = 19
"""Number of blocks in MobileNetV2's backbone, including its first and last convolutions."""

MEAN_AND_STD = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


class Normalise(nn.Module):
    """Normalises each channel of pictures ``[rows, C, H, W]``: (x - mean) / std."""

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


class ThreeColours(nn.Module):
    """Repeats the channel of grey pictures ``[rows, 1, H, W]`` as red, green and blue."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


def _add_bottleneck(parts: OrderedDict[str, nn.Module], width: int, model: Backbone | MobileNetV2) -> nn.Sequential:
    """Return the feature extractor with the bottleneck layers added. width: the number of features before them."""
    parts["flatten"] = nn.Flatten()
    if model.bottleneck:
        parts["bottleneck"] = nn.Linear(width, model.bottleneck)
        parts["relu"] = nn.ReLU()
    if model.bottleneck_dropout:
        parts["dropout"] = nn.Dropout(model.bottleneck_dropout)
    return nn.Sequential(parts)


@dataclass(frozen=True)
class Backbone(Model):
    """An external network, a bottleneck layer, and the heads.

    The parts of ``features`` are named as in :class:`MobileNetV2`, so the learning rate of the group
    ``features.backbone`` is the backbone's.

    backbone: ``timm:NAME``, ``torchvision:NAME``, or ``package.module:factory``, a function that returns an nn.Module
        from rows ``[rows, *shape]`` to features ``[rows, features]``. Importing a module runs its code, so the user
        must allow it with :func:`fedmm.allow_import`.
    options: keyword arguments for the network's constructor or factory.
    pretrained: use the library's pretrained weights, downloading them if they are not cached.
    weights: a safetensors, .pt or .pth file with the backbone's state dict, looked up in the current folder and then in
        the data folder; weights of a classifier are ignored.
    normalise: how pictures in [0, 1] are normalised. ``auto``: as networks of timm and torchvision expect (with
        ImageNet's mean and deviation if they do not say), otherwise not at all.
    frozen: name prefixes of the backbone's parts that are never trained or sent; ``*`` freezes all of it.
    bottleneck: width of the layer between the backbone's features and the heads, 0 for none.
    bottleneck_dropout: dropout after the bottleneck.
    """

    name: ClassVar[str] = "backbone"
    summary: ClassVar[str] = "any network of timm or torchvision, or your own package.module:factory"
    paths: ClassVar[tuple[str, ...]] = ("weights",)

    adversary_hidden: tuple[int, ...] = (256,)
    centre: Centring = "none"
    batch_norm: BatchNormPolicy = "averaged"
    backbone: str = "torchvision:resnet18"
    options: Mapping[str, float | str | bool] = field(default_factory=dict, hash=False)
    pretrained: bool = False
    weights: str = ""
    normalise: AutoNormalising = "auto"
    frozen: tuple[str, ...] = ()
    bottleneck: int = 256
    bottleneck_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("bottleneck", self.bottleneck, 0)
        if self.bottleneck:
            require_widths("bottleneck", self.bottleneck)
        within("bottleneck_dropout", self.bottleneck_dropout, 0.0, 0.99)
        flag("pretrained", self.pretrained)
        for option, value in self.options.items():
            finite = not isinstance(value, float) or math.isfinite(value)
            require(finite, f"options.{option} must be finite, not {value!r}")
        one_of("normalise", self.normalise, get_args(AutoNormalising))
        require(not (self.pretrained and self.weights), "pretrained and weights exclude each other; use one of them")
        require(
            not self.frozen or self.batch_norm == "frozen",
            f"batch_norm must be 'frozen' with frozen parts, whose statistics {self.batch_norm!r} would change",
        )
        require(
            not (self.weights or self.pretrained) or self.initialisation == "torch",
            f"initialisation must be 'torch' with pretrained weights; {self.initialisation!r} would overwrite them",
        )

    def untrained(self) -> Backbone:
        return replace(self, weights="", pretrained=False)

    def features(self, shape: tuple[int, ...]) -> nn.Module:
        with warnings.catch_warnings():  # libraries' warnings about themselves
            warnings.simplefilter("ignore")
            found = import_backbone(self.backbone, self.options, shape, pretrained=self.pretrained)
        if self.weights:
            load_backbone(found.module, self.weights, self.backbone)
        self._freeze(found.module)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if found.colours == 3 and shape[0] == 1 and len(shape) == 3:
            parts["colours"] = ThreeColours()
        scale = self._scale(found, shape)
        if scale is not None:
            parts["normalise"] = Normalise(*scale)
        parts["backbone"] = found.module
        width = self._width(nn.Sequential(parts), shape)
        return _add_bottleneck(parts, width, self)

    def _scale(self, found: Imported, shape: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Return the mean and deviation to normalise pictures of this shape by; None for no normalisation."""
        if self.normalise == "none" or (self.normalise == "auto" and found.colours is None):
            return None
        scale = found.normalise or MEAN_AND_STD["imagenet"]
        if self.normalise != "auto":
            scale = MEAN_AND_STD[self.normalise]
        colours = found.colours or (shape[0] if len(shape) == 3 else 0)
        if len(scale[0]) == colours:
            return scale
        require(
            self.normalise == "auto",
            f"normalise = {self.normalise!r} needs pictures with 3 channels; rows have shape {list(shape)}: use 'none'",
        )
        return None

    def _freeze(self, backbone: nn.Module) -> None:
        names = [name for name, _ in backbone.named_parameters()]
        for beginning in self.frozen:
            chosen = [n for n in names if beginning in ("*", n) or n.startswith(f"{beginning}.")]
            if not chosen:
                parts = dict.fromkeys(name.split(".")[0] for name in names)
                raise FedmmError(
                    f"frozen names {beginning!r}, which is not a part of {self.backbone!r} (parts: {', '.join(parts)})"
                )
            for name in chosen:
                backbone.get_parameter(name).requires_grad_(False)

    def _width(self, parts: nn.Module, shape: tuple[int, ...]) -> int:
        """Return the number of features of a row of this shape."""
        dtype = next((p.dtype for p in parts.parameters() if p.is_floating_point()), torch.float32)
        try:
            with torch.no_grad():
                found = parts.eval()(torch.zeros((2, *shape), dtype=dtype))
        except Exception as problem:
            reason = first_line(problem)[:200]
            raise FedmmError(
                f"backbone {self.backbone!r} does not take rows of shape {list(shape)}: {reason}"
            ) from problem
        parts.train()
        fits = isinstance(found, Tensor) and found.dim() >= 2 and len(found) == 2
        require(fits, f"backbone {self.backbone!r} must map [rows, ...] to a tensor of features [rows, features]")
        return int(found.flatten(1).shape[1])


@dataclass(frozen=True)
class MobileNetV2(Model):
    """torchvision's MobileNetV2 with a bottleneck layer, as in the paper's Office-31 experiments.

    The parts of ``features`` are ``normalise``, ``backbone``, ``pool``, ``flatten``, ``bottleneck``, ``relu`` and
    ``dropout``, so the group ``features.backbone`` sets the backbone's learning rate.

    weights: ``imagenet`` for torchvision's own, or a safetensors or .pth file with torchvision's names, looked up
        in the current folder and then in the data folder; if empty, the start is random.
    normalise: how pictures in [0, 1] are normalised. ``imagenet``: by ImageNet's mean and deviation, as torchvision's
        weights need; ``half``: by mean 0.5 and deviation 0.5, as Keras's need; ``none``: not at all.
    frozen_blocks: how many leading blocks of the backbone's 19 are never trained or sent.
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
        require(shape[0] == 3, f"model {self.name!r} takes pictures with 3 channels, not {shape[0]}")
        backbone = self._backbone()
        for block in list(backbone)[: self.frozen_blocks]:
            block.requires_grad_(False)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if self.normalise != "none":
            parts["normalise"] = Normalise(*MEAN_AND_STD[self.normalise])
        parts["backbone"] = backbone
        parts["pool"] = nn.AdaptiveAvgPool2d(1)
        return _add_bottleneck(parts, 1280, self)

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
