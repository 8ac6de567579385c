"""Dropout whose mask is a function of a key, so that every engine and device draws the same one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmm.core.errors import FedmmError
from fedmm.core.seeding import uniform

_PER_ELEMENT = (nn.Dropout,)
_PER_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_REFUSED = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
_LAYER_STRIDE = 1 << 40


class SeededDropout(nn.Module):
    """Like ``nn.Dropout`` (or, per channel, ``nn.Dropout2d``), with its mask drawn from the buffer ``key``."""

    key: Tensor

    def __init__(self, p: float, layer: int, *, per_channel: bool = False) -> None:
        super().__init__()
        self.p = p
        self.per_channel = per_channel
        self._offset = layer * _LAYER_STRIDE
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.per_channel else x.shape
        position = torch.arange(self._offset, self._offset + shape.numel(), device=x.device).view(shape)
        keep = uniform(self.key, position) >= self.p
        return torch.where(keep, x / (1.0 - self.p), 0.0)


def seed_dropout(module: nn.Module) -> None:
    """Replace every dropout layer inside ``module``, in place, by its seeded twin."""
    layers = 0
    for path, layer in list(module.named_modules()):
        if isinstance(layer, _REFUSED):
            raise FedmmError(
                f"layer {path!r} is {type(layer).__name__}, whose random numbers cannot be seeded per client and "
                "round; use nn.Dropout"
            )
        if isinstance(layer, _PER_ELEMENT + _PER_CHANNEL):
            seeded = SeededDropout(layer.p, layers, per_channel=isinstance(layer, _PER_CHANNEL))
            layers += 1
            parent, _, child = path.rpartition(".")
            setattr(module.get_submodule(parent), child, seeded)
