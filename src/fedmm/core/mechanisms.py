"""How a client's update is changed on its way to the server: not at all, clipped, or clipped and noised.

An update is changed before the client finishes its round: z_i becomes z_0 + the transmitted difference, in the client's
own state and in the upload alike. What a client sums up (FedMM's dual) and what the server sums up therefore stay
equal, however coarse the transmission is.

Noise hides nothing from anyone who can draw it again. In a simulation it is a function of the run's seed, like every
other draw, so the reported privacy is what the method would give in a deployment. A site with something to hide draws
from a secret of its own (:class:`SecretNoise`), which never leaves it. In both cases the noise is a function of client,
round and session: an update that is computed again carries the same noise, and one that answers another request carries
different noise. With a secret, the noise is also a function of the update itself and of everything received before it
was computed, so that no two updates share noise, which would cancel in their difference.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.seeding import key, normal
from fedmm.core.validation import one_of, positive


class Circumstances(NamedTuple):
    """What a transmission may need besides the update.

    min_size: number of coordinates of omega, which come first. normal: standard normal numbers, shaped like the update.
    clients: the number of clients in the round, a number or ``[..., 1]``.
    """

    min_size: int
    normal: Tensor
    clients: int | Tensor


@dataclass(frozen=True)
class Transmission(ABC):
    """A transformation of updates before they are sent."""

    name: ClassVar[str]
    summary: ClassVar[str]
    exact: ClassVar[bool] = False
    """Whether updates arrive unchanged."""
    private: ClassVar[bool] = False
    """Whether updates carry noise that hides their client. It then needs :class:`Circumstances`, and a client sends
    nothing else that depends on its data."""

    @abstractmethod
    def transmitted(self, update: Tensor, given: Circumstances | None = None) -> Tensor:
        """Return z_i - z_0 as it arrives, ``[..., size]``."""


@dataclass(frozen=True)
class ExactUpdate(Transmission):
    """Updates arrive unchanged."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "updates arrive as they are"
    exact: ClassVar[bool] = True

    def transmitted(self, update: Tensor, given: Circumstances | None = None) -> Tensor:
        return update


@dataclass(frozen=True)
class ClippedUpdate(Transmission):
    """Updates are clipped to a norm of at most ``norm``, omega and psi together."""

    name: ClassVar[str] = "clip"
    summary: ClassVar[str] = "an update longer than a norm is shortened to it"

    norm: float = 1.0

    def __post_init__(self) -> None:
        positive("norm", self.norm)

    def transmitted(self, update: Tensor, given: Circumstances | None = None) -> Tensor:
        return _clip(update, self.norm)


Trust = Literal["nobody", "server"]


@dataclass(frozen=True)
class GaussianUpdate(Transmission):
    """Client-level differential privacy: updates are clipped, omega and psi separately, and Gaussian noise is added.

    norm_min, norm_max: the clipping norms of omega's and psi's parts.
    noise_min, noise_max: the standard deviation of the noise on every coordinate, in units of that norm; if the server
        is trusted, of the noise on the sum of the updates.
    trust: ``nobody``: every client adds the full noise, and not even the server can see behind it. ``server``: the
        clients of a round share the noise, which hides what the server computes from all updates together. Each of n
        clients adds 1 / (n - 1) of the variance, so that a client that knows its own part still faces the full noise
        from the others. Only for algorithms whose clients keep nothing between rounds, and exact uploads.
    delta: the delta for which epsilon is reported.

    A non-finite update is sent as noise alone, so divergence stays private, too.
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
        short = torch.cat([_clip_finite(omega, self.norm_min), _clip_finite(psi, self.norm_max)], dim=-1)
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


def transmit_point(transmission: Transmission, z: Tensor, z_0: Tensor, given: Circumstances | None = None) -> Tensor:
    """Return z_i as the server will know it, ``[..., size]``: z_0 plus the update as it arrives."""
    return z if transmission.exact else z_0 + transmission.transmitted(z - z_0, given)


def _clip(update: Tensor, norm: float) -> Tensor:
    length = update.norm(dim=-1, keepdim=True)
    return torch.where(length > norm, update * (norm / length), update)


def _clip_finite(update: Tensor, norm: float) -> Tensor:
    """Return the clipped update, or 0 if its norm is not finite."""
    length = update.norm(dim=-1, keepdim=True)
    return torch.where(length.isfinite(), _clip(update, norm), 0.0)


def _root(number: int | Tensor) -> float | Tensor:
    return number.sqrt() if isinstance(number, Tensor) else math.sqrt(number)


_BYTES = 32


class NoiseSource(ABC):
    """A source of standard normal numbers for clients' updates."""

    @abstractmethod
    def normal(
        self, client: str, t: int, session: int, update: Tensor, received: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return noise, float64 ``[size]`` on the CPU, for the client's ``update`` in round t of the server's session.

        received: what the update was computed from, as received from the server.
        """


@dataclass(frozen=True)
class SeededNoise(NoiseSource):
    """Noise that follows from the run's seed, the same on every engine: for simulations."""

    seed: int = 0

    def key(self, client: str, t: int, session: int = 0) -> int:
        """Return the key for :func:`fedmm.core.seeding.normal`, whose positions are the coordinates."""
        return key(self.seed, "noise", client, t, session)

    def normal(
        self, client: str, t: int, session: int, update: Tensor, received: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        return normal(self.key(client, t, session), torch.arange(len(update)))


@dataclass(frozen=True)
class SecretNoise(NoiseSource):
    """Noise from a secret of at least 32 bytes, by SHAKE-256: unpredictable without the secret.

    run: the run's name, so that no two runs share noise.
    """

    secret: bytes = field(repr=False)
    run: str = ""

    def __post_init__(self) -> None:
        require(len(self.secret) >= _BYTES, f"a secret for noise must have at least {_BYTES} bytes")

    @classmethod
    def kept_in(cls, path: Path, run: str = "") -> SecretNoise:
        """Read the secret from a file, which is first created, readable by its owner only, if there is none yet."""
        try:
            if not path.exists():
                _draw_secret(path)
            secret = path.read_bytes()
        except OSError as problem:
            raise FedmmError(f"the secret for noise cannot be kept in {path}: {problem.strerror}") from problem
        require(len(secret) == _BYTES, f"{path} holds {len(secret)} bytes, not a secret of {_BYTES}; remove the file")
        return cls(secret, run)

    def normal(
        self, client: str, t: int, session: int, update: Tensor, received: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        size, said = len(update), update.detach().cpu().double().numpy().tobytes() + _digest(received or {})
        about = f"fedmm noise\x1f{self.run}\x1f{client}\x1f{t}\x1f{session}\x1f".encode()
        stream = bytearray(hashlib.shake_256(self.secret + about + said).digest(16 * size))
        bits = (torch.frombuffer(stream, dtype=torch.int64) >> 11) & ((1 << 53) - 1)
        first, second = ((bits.view(2, size).double() + 0.5) / 2**53).unbind()
        return (-2.0 * first.log()).sqrt() * (2.0 * math.pi * second).cos()


def _digest(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a hash of the tensors' names, dtypes, shapes and values."""
    whole = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous()
        whole.update(f"{name}\x1f{array.dtype}\x1f{list(array.shape)}\x1f".encode())
        whole.update(array.view(-1).view(torch.uint8).numpy().tobytes())
    return whole.digest()


def _draw_secret(path: Path) -> None:
    """Write a new secret atomically, and never over an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.touch(mode=0o600)
        with partial.open("wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
