"""What happens to an update on its way from a client to the server.

Whatever changes an update changes it before the client finishes its round: z_i becomes z_0 + the transmitted
difference, for the client's own state and for the upload alike. So what a client adds up (FedMM's dual) and what the
server adds up stay equal, however coarse the transmission is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.checks import positive


@dataclass(frozen=True)
class Transmission(ABC):
    """A function of an update."""

    name: ClassVar[str]
    summary: ClassVar[str]
    exact: ClassVar[bool] = False
    """Whether updates arrive as they are."""

    @abstractmethod
    def transmitted(self, update: Tensor) -> Tensor:
        """What arrives of z_i - z_0, ``[..., size]``."""


@dataclass(frozen=True)
class ExactUpdate(Transmission):
    """Updates arrive as they are."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "updates arrive as they are"
    exact: ClassVar[bool] = True

    def transmitted(self, update: Tensor) -> Tensor:
        return update


@dataclass(frozen=True)
class ClippedUpdate(Transmission):
    """An update longer than ``norm`` is shortened to it, omega and psi together."""

    name: ClassVar[str] = "clip"
    summary: ClassVar[str] = "an update longer than a norm is shortened to it"

    norm: float = 1.0

    def __post_init__(self) -> None:
        positive("norm", self.norm)

    def transmitted(self, update: Tensor) -> Tensor:
        length = update.norm(dim=-1, keepdim=True)
        return torch.where(length > self.norm, update * (self.norm / length), update)


TRANSMISSIONS: dict[str, type[Transmission]] = {each.name: each for each in (ExactUpdate, ClippedUpdate)}


def arrived(transmission: Transmission, z: Tensor, z_0: Tensor) -> Tensor:
    """z_i as the server will know it, ``[..., size]``: z_0 and what arrives of the client's way from there."""
    return z if transmission.exact else z_0 + transmission.transmitted(z - z_0)
