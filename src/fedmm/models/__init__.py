"""Networks, heads, and networks as functions of flat vectors; ``MODELS`` is the table of built-in networks."""

from __future__ import annotations

from fedmm.models.backbones import Backbone, MobileNetV2
from fedmm.models.flat import FlatNetwork
from fedmm.models.network import Network
from fedmm.models.zoo import MLP, Model, PaperCNN, PaperCNN3, SmallCNN

MODELS: dict[str, type[Model]] = {
    model.name: model for model in (MLP, SmallCNN, PaperCNN, PaperCNN3, MobileNetV2, Backbone)
}

__all__ = [
    "Backbone",
    "FlatNetwork",
    "MLP",
    "MODELS",
    "MobileNetV2",
    "Model",
    "Network",
    "PaperCNN",
    "PaperCNN3",
    "SmallCNN",
]
