"""Dropout whose mask is a function of a key, so that every engine and device draws the same mask."""

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
        keep = uniform(self.key, self.positions(x.shape, x.device)) >= self.p
        return torch.where(keep, x * self.scale, 0.0)

    @property
    def scale(self) -> float:
        """The factor on kept elements."""
        return 1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0

    def positions(self, shape: torch.Size, device: torch.device) -> Tensor:
        """Return the index of the draw for each element of a batch of this shape, int64 and broadcastable to it."""
        if self.per_channel:
            shape = torch.Size((*shape[:2], *(1,) * (len(shape) - 2)))
        return torch.arange(self._offset, self._offset + shape.numel(), device=device).view(shape)


def seed_dropout(module: nn.Module) -> None:
    """Replace every dropout layer inside ``module``, in place, by a :class:`SeededDropout`."""
    layers = 0
    for path, layer in list(module.named_modules(remove_duplicate=False)):
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
