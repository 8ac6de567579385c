"""Where the noise in a client's updates comes from.

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

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.seeding import key, normal

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
        """The secret in a file, drawn and written, for its owner's eyes alone, where there is none yet."""
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
