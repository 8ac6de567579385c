"""Schedules over the rounds, constant by default: learning rates, the trade-off nu, and numbers of local steps.

``schedule(t, rounds)`` is the factor in round t (from 0) of a run of ``rounds`` rounds; p = t / rounds is its progress.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from fedmm.core.errors import FedmmError, unknown
from fedmm.core.seeding import key
from fedmm.core.validation import not_negative, positive


class Schedule(Protocol):
    """The factor in round t of a run of ``rounds`` rounds."""

    def __call__(self, t: int, rounds: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """1 in every round."""

    def __call__(self, t: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True)
class DannDecay:
    """(1 + alpha p)^-beta, the learning rate of DANN's own experiments."""

    alpha: float = 10.0
    beta: float = 0.75

    def __post_init__(self) -> None:
        not_negative("alpha", self.alpha)
        not_negative("beta", self.beta)

    def __call__(self, t: int, rounds: int) -> float:
        return float((1.0 + self.alpha * t / rounds) ** -self.beta)


@dataclass(frozen=True)
class InverseDecay:
    """(1 + rate t)^-power, tllib's usual learning rate, with t in rounds."""

    rate: float = 0.001
    power: float = 0.75

    def __post_init__(self) -> None:
        not_negative("rate", self.rate)
        not_negative("power", self.power)

    def __call__(self, t: int, rounds: int) -> float:
        return float((1.0 + self.rate * t) ** -self.power)


@dataclass(frozen=True)
class CosineDecay:
    """From 1 down to ``final`` along half a cosine."""

    final: float = 0.0

    def __post_init__(self) -> None:
        not_negative("final", self.final)

    def __call__(self, t: int, rounds: int) -> float:
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * t / rounds))


@dataclass(frozen=True)
class DannWarmup:
    """2 / (1 + exp(-gamma p)) - 1, from 0 to nearly 1: DANN's warm-up of the trade-off nu."""

    gamma: float = 10.0

    def __post_init__(self) -> None:
        positive("gamma", self.gamma)

    def __call__(self, t: int, rounds: int) -> float:
        return 2.0 / (1.0 + math.exp(-self.gamma * t / rounds)) - 1.0


@dataclass(frozen=True)
class TllibWarmup:
    """2 / (1 + exp(-alpha t / length)) - 1: tllib's warm-start gradient reversal, with its length in rounds."""

    alpha: float = 1.0
    length: int = 1000

    def __post_init__(self) -> None:
        positive("alpha", self.alpha)
        positive("length", self.length)

    def __call__(self, t: int, rounds: int) -> float:
        return 2.0 / (1.0 + math.exp(-self.alpha * t / self.length)) - 1.0


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "dann_decay": DannDecay,
    "inverse_decay": InverseDecay,
    "cosine_decay": CosineDecay,
    "dann_warmup": DannWarmup,
    "tllib_warmup": TllibWarmup,
}


def as_schedule(name: str, value: object) -> Schedule:
    """Return a schedule given as an instance or by its name in ``SCHEDULES``; ``name`` is that of the option."""
    if isinstance(value, str):
        if value not in SCHEDULES:
            raise unknown(f"schedule in {name}", value, SCHEDULES)
        return SCHEDULES[value]()
    if isinstance(value, type) or not callable(value):
        got = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
        raise FedmmError(f"{name} must be a schedule such as fedmm.DannDecay(), or its name, not {got}")
    return value


# Local steps ----------------------------------------------------------------------------------------------------------


class StepSchedule(Protocol):
    """A number of local steps that differs between rounds; some rounds may have a single step."""

    def steps(self, own: int, seed: int, t: int) -> int:
        """Return the number of steps in round t (from 0) of a client with M_i = ``own``; seed: the run's."""

    def most(self, own: int) -> int:
        """Return the largest number of steps in any round."""


_MOST = 10


@dataclass(frozen=True)
class GeometricSteps:
    """Geometric numbers of steps: each is followed by another with probability 1 - 1 / mean; the same at all clients.

    The number follows from the run's seed and the round, so that server and clients agree without a message. It is
    capped at 10 times the mean, which 5 in 100,000 rounds would exceed.
    """

    mean: int

    def steps(self, own: int, seed: int, t: int) -> int:
        chance = key(seed, "local steps", t) / (1 << 63)
        again = left = 1.0 - 1.0 / self.mean
        steps = 1
        while chance < left and steps < self.most(own):  # only products, which every machine rounds alike
            steps += 1
            left *= again
        return steps

    def most(self, own: int) -> int:
        return _MOST * self.mean


@dataclass(frozen=True)
class AlternatingSteps:
    """M_i steps in every other round, starting with the first, and one step in the rounds between."""

    def steps(self, own: int, seed: int, t: int) -> int:
        return own if t % 2 == 0 else 1

    def most(self, own: int) -> int:
        return own


@dataclass(frozen=True)
class PairedSteps:
    """One step in every other round, starting with the first, and the other M_i - 1 steps in the rounds between."""

    def steps(self, own: int, seed: int, t: int) -> int:
        return 1 if t % 2 == 0 else max(own - 1, 1)

    def most(self, own: int) -> int:
        return max(own - 1, 1)
