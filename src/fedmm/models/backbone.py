"""Any network as a feature extractor: timm's, torchvision's, or your own."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from fedmm.core.errors import FedmmError, require
from fedmm.core.validation import at_least, flag, one_of, within
from fedmm.models.backbones import Imported, ThreeColours, imported
from fedmm.models.mobilenet import MEAN_AND_STD, Normalise
from fedmm.models.network import BatchNormPolicy, Centring
from fedmm.models.pretrained import load_backbone
from fedmm.models.zoo import Model, require_widths

Normalising = Literal["auto", "imagenet", "half", "none"]


@dataclass(frozen=True)
class Backbone(Model):
    """A network from elsewhere, a bottleneck layer, and the heads.

    The parts of ``features`` are called as MobileNetV2's, so that the backbone's learning rate is that of the group
    ``features.backbone``.

    backbone: ``timm:NAME``, ``torchvision:NAME``, or ``package.module:factory``, a function that returns an nn.Module
        from rows ``[rows, *shape]`` to features ``[rows, features]``. Importing a module runs its
        code, so the user has to allow it: :func:`fedmm.allow_import`.
    options: keyword arguments for it.
    pretrained: the library's own weights, downloaded where they are not kept already.
    weights: a safetensors, .pt or .pth file with the backbone's state dict, looked for from the current folder and then
        in the data folder; weights of a classifier in it are not used.
    normalise: what is done to pictures in [0, 1]. ``auto``: for networks of timm and torchvision what they want
        (ImageNet's mean and deviation where they do not say), else nothing.
    frozen: beginnings of names of the backbone's parts that are never changed, and no part of what is sent; ``*`` is
        all of it.
    bottleneck: width of the layer between the backbone's features and the heads, 0 for none.
    bottleneck_dropout: dropout after it.
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
    normalise: Normalising = "auto"
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
        one_of("normalise", self.normalise, get_args(Normalising))
        require(not (self.pretrained and self.weights), "pretrained and weights exclude each other; use one of them")
        require(
            not self.frozen or self.batch_norm == "frozen",
            f"batch_norm must be 'frozen' with frozen parts, whose statistics {self.batch_norm!r} would change",
        )
        require(
            not (self.weights or self.pretrained) or self.initialisation == "torch",
            f"initialisation must be 'torch' with weights from elsewhere; {self.initialisation!r} would overwrite them",
        )

    def untrained(self) -> Backbone:
        return replace(self, weights="", pretrained=False)

    def features(self, shape: tuple[int, ...]) -> nn.Module:
        with warnings.catch_warnings():  # of a library about itself
            warnings.simplefilter("ignore")
            found = imported(self.backbone, self.options, shape, pretrained=self.pretrained)
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
        parts["flatten"] = nn.Flatten()
        if self.bottleneck:
            parts["bottleneck"] = nn.Linear(width, self.bottleneck)
            parts["relu"] = nn.ReLU()
        if self.bottleneck_dropout:
            parts["dropout"] = nn.Dropout(self.bottleneck_dropout)
        return nn.Sequential(parts)

    def _scale(self, found: Imported, shape: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and deviation by which pictures of the shape are normalised; None for not at all."""
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
            f"normalise = {self.normalise!r} is for pictures of 3 channels; rows have shape {list(shape)}: use 'none'",
        )
        return None

    def _freeze(self, backbone: nn.Module) -> None:
        names = [name for name, _ in backbone.named_parameters()]
        for beginning in self.frozen:
            chosen = [n for n in names if beginning in ("*", n) or n.startswith(f"{beginning}.")]
            if not chosen:
                parts = dict.fromkeys(name.split(".")[0] for name in names)
                raise FedmmError(
                    f"frozen names {beginning!r}, no part of {self.backbone!r} (parts: {', '.join(parts)})"
                )
            for name in chosen:
                backbone.get_parameter(name).requires_grad_(False)

    def _width(self, parts: nn.Module, shape: tuple[int, ...]) -> int:
        """How many features a row of the shape becomes."""
        dtype = next((p.dtype for p in parts.parameters() if p.is_floating_point()), torch.float32)
        try:
            with torch.no_grad():
                found = parts.eval()(torch.zeros((2, *shape), dtype=dtype))
        except Exception as problem:
            reason = (str(problem).strip() or type(problem).__name__).splitlines()[0][:200]
            raise FedmmError(
                f"backbone {self.backbone!r} does not take rows of shape {list(shape)}: {reason}"
            ) from problem
        parts.train()
        fits = isinstance(found, Tensor) and found.dim() >= 2 and len(found) == 2
        require(fits, f"backbone {self.backbone!r} must map [rows, ...] to a tensor of features [rows, features]")
        return int(found.flatten(1).shape[1])
