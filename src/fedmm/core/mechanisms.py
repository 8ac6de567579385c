"""What happens to an update on its way from a client to the server.

Whatever changes an update changes it before the client finishes its round: z_i becomes z_0 + the transmitted
difference, for the client's own state and for the upload alike. So what a client adds up (FedMM's dual) and what the
server adds up stay equal, however coarse the transmission is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.validation import one_of, positive


class Circumstances(NamedTuple):
    """What a transmission may need beside the update.

    min_size: how many coordinates are omega's; they come first. normal: standard normal numbers like the update.
    clients: how many take part in the round, a number or ``[..., 1]``.
    """

    min_size: int
    normal: Tensor
    clients: int | Tensor


@dataclass(frozen=True)
class Transmission(ABC):
    """A function of an update."""

    name: ClassVar[str]
    summary: ClassVar[str]
    exact: ClassVar[bool] = False
    """Whether updates arrive as they are."""
    private: ClassVar[bool] = False
    """Whether updates carry noise that hides their client; then it needs :class:`Circumstances`, and a client sends
    nothing else that comes of its data."""

    @abstractmethod
    def transmitted(self, update: Tensor, given: Circumstances | None = None) -> Tensor:
        """What arrives of z_i - z_0, ``[..., size]``."""


@dataclass(frozen=True)
class ExactUpdate(Transmission):
    """Updates arrive as they are."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "updates arrive as they are"
    exact: ClassVar[bool] = True

    def transmitted(self, update: Tensor, given: Circumstances | None = None) -> Tensor:
        return update


@dataclass(frozen=True)
class ClippedUpdate(Transmission):
    """An update longer than ``norm`` is shortened to it, omega and psi together."""

    name: ClassVar[str] = "clip"
    summary: ClassVar[str] = "an update longer than a norm is shortened to it"

    norm: float = 1.0

    def __post_init__(self) -> None:
        positive("norm", self.norm)

    def transmitted(self, update: Tensor, given: Circumstances | None = None) -> Tensor:
        return _shortened(update, self.norm)


Trust = Literal["nobody", "server"]


@dataclass(frozen=True)
class GaussianUpdate(Transmission):
    """Updates are shortened, omega and psi each to a norm of its own, and Gaussian noise is added: client-level
    differential privacy.

    norm_min, norm_max: the longest that omega's and psi's part may be.
    noise_min, noise_max: the standard deviation of the noise on every coordinate, in units of that norm. Where the
        server is trusted, it is that of the sum of the updates.
    trust: ``nobody``: every client adds the whole noise, and not even the server can look behind it. ``server``: the
        clients of a round share in it, and what the server makes of all updates together is hidden behind it. Each of
        n clients adds the (n - 1)-th part (of the variance): one who knows its own part has the others' against it.
        Only for algorithms whose clients keep nothing between rounds, and exact uploads.
    delta: with which epsilon is reported.

    An update that is not finite is sent as noise alone: that a client diverged is its secret, too.
    """

    name: ClassVar[str] = "gaussian"
    summary: ClassVar[str] = "updates are shortened and carry noise: client-level differential privacy"
    private: ClassVar[bool] = True

    norm_min: float = 1.0
    norm_max: float = 1.0
    noise_min: float = 1.0
    noise_max: float = 1.0
    trust: Trust = "nobody"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("norm_min", "norm_max", "noise_min", "noise_max", "delta"):
            positive(name, getattr(self, name))
        one_of("trust", self.trust, ("nobody", "server"))
        require(self.delta < 1, f"delta must be below 1, not {self.delta!r}")

    def transmitted(self, update: Tensor, given: Circumstances | None = None) -> Tensor:
        assert given is not None, "noise has to come from somewhere"
        omega, psi = update[..., : given.min_size], update[..., given.min_size :]
        short = torch.cat([_bounded(omega, self.norm_min), _bounded(psi, self.norm_max)], dim=-1)
        deviation = torch.cat(
            [
                torch.full_like(omega, self.noise_min * self.norm_min),
                torch.full_like(psi, self.noise_max * self.norm_max),
            ],
            dim=-1,
        )
        if self.trust == "server":
            deviation = deviation / _root(given.clients - 1)
        return short + deviation * given.normal.to(update.dtype)


TRANSMISSIONS: dict[str, type[Transmission]] = {
    each.name: each for each in (ExactUpdate, ClippedUpdate, GaussianUpdate)
}


def arrived(transmission: Transmission, z: Tensor, z_0: Tensor, given: Circumstances | None = None) -> Tensor:
    """z_i as the server will know it, ``[..., size]``: z_0 and what arrives of the client's way from there."""
    return z if transmission.exact else z_0 + transmission.transmitted(z - z_0, given)


def _shortened(update: Tensor, norm: float) -> Tensor:
    length = update.norm(dim=-1, keepdim=True)
    return torch.where(length > norm, update * (norm / length), update)


def _bounded(update: Tensor, norm: float) -> Tensor:
    """Shortened, and 0 where its length is no number."""
    length = update.norm(dim=-1, keepdim=True)
    return torch.where(length.isfinite(), _shortened(update, norm), 0.0)


def _root(number: int | Tensor) -> float | Tensor:
    return number.sqrt() if isinstance(number, Tensor) else math.sqrt(number)
