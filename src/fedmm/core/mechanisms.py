"""What happens to an update on its way from a client to the server.

Whatever changes an update changes it before the client finishes its round: z_i becomes z_0 + the transmitted
difference, for the client's own state and for the upload alike. So what a client adds up (FedMM's dual) and what the
server adds up stay equal, however coarse the transmission is.

Noise hides nothing from those who can draw it again. In a simulation it is a function of the run's seed, like every
other draw, and whoever has the seed has the noise: what is reported of privacy is then what the method would give. A
site that really hides something draws from a secret of its own (:class:`SecretNoise`), which never leaves it. In both
cases it is a function of client, round and session: an update that is computed again carries the same noise, and one
that answers another question carries other noise. A secret's noise is a function of the update itself too, and of all
that was received before it was computed, so that no two updates can share it: their difference would have none.
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
        """z_i - z_0 as it arrives, ``[..., size]``."""


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
        return _clip(update, self.norm)


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

    An update that is not finite is sent as noise alone, so divergence stays private, too.
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
    """z_i as the server will know it, ``[..., size]``: z_0 and what arrives of the client's way from there."""
    return z if transmission.exact else z_0 + transmission.transmitted(z - z_0, given)


def _clip(update: Tensor, norm: float) -> Tensor:
    length = update.norm(dim=-1, keepdim=True)
    return torch.where(length > norm, update * (norm / length), update)


def _clip_finite(update: Tensor, norm: float) -> Tensor:
    """Shortened, and 0 if its length is no number."""
    length = update.norm(dim=-1, keepdim=True)
    return torch.where(length.isfinite(), _clip(update, norm), 0.0)


def _root(number: int | Tensor) -> float | Tensor:
    return number.sqrt() if isinstance(number, Tensor) else math.sqrt(number)


_BYTES = 32


class NoiseSource(ABC):
    """Standard normal numbers for a client's updates."""

    @abstractmethod
    def normal(
        self, client: str, t: int, session: int, update: Tensor, received: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """For the client's update ``[size]`` in round t of the server's session: float64 ``[size]``, on the CPU.

        received: what the update was computed from, as it came from the server.
        """


@dataclass(frozen=True)
class SeededNoise(NoiseSource):
    """Noise that follows from the run's seed, the same in every engine: for simulations."""

    seed: int = 0

    def key(self, client: str, t: int, session: int = 0) -> int:
        """The key of :func:`fedmm.core.seeding.normal`, position by position."""
        return key(self.seed, "noise", client, t, session)

    def normal(
        self, client: str, t: int, session: int, update: Tensor, received: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        return normal(self.key(client, t, session), torch.arange(len(update)))


@dataclass(frozen=True)
class SecretNoise(NoiseSource):
    """Noise from a secret of at least 32 bytes, by SHAKE-256: without the secret it cannot be told from chance.

    run: its name, so that no two runs share their noise.
    """

    secret: bytes = field(repr=False)
    run: str = ""

    def __post_init__(self) -> None:
        require(len(self.secret) >= _BYTES, f"a secret for noise must have at least {_BYTES} bytes")

    @classmethod
    def kept_in(cls, path: Path, run: str = "") -> SecretNoise:
        """The secret in a file, drawn and written, for its owner's eyes alone, if there is none yet."""
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
    """Of names, kinds, shapes and values."""
    whole = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous()
        whole.update(f"{name}\x1f{array.dtype}\x1f{list(array.shape)}\x1f".encode())
        whole.update(array.view(-1).view(torch.uint8).numpy().tobytes())
    return whole.digest()


def _draw_secret(path: Path) -> None:
    """Write a new secret, whole, and never over another."""
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
