"""A small federation that Ray's processes can import; its clients may die or refuse to work in given rounds."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.core.layout import Layout
from fedmm.core.problem import FederatedProblem, LocalReport, Statistics
from fedmm.remote.ray import ActorShare

SIZES = (5, 3)


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Spring:
    """A client with the field ``stiffness * (z - rest)``, whose statistics depend on the rounds it worked in.

    deaths: rounds in which its process is killed at the second local step: once each, recorded by files in ``marks``,
    or at every attempt if there is no ``marks``. refusals: rounds in which it refuses to work.
    """

    name: str
    stiffness: Tensor
    rest: Tensor
    deaths: tuple[int, ...] = ()
    refusals: tuple[int, ...] = ()
    marks: Path | None = None

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> SpringRound:
        if t in self.refusals:
            raise FedmmError(f"{self.name} does not work in round {t + 1}")
        return SpringRound(self, t, statistics)

    def dies(self, t: int) -> bool:
        if t not in self.deaths or self.marks is None:
            return t in self.deaths
        mark = self.marks / f"{self.name}-{t}"
        first = not mark.exists()
        mark.touch()
        return first


@dataclass(frozen=True)
class SpringRound:
    spring: Spring
    t: int
    statistics: Statistics
    values: list[Tensor] = field(default_factory=list)

    def first_value(self) -> Tensor:
        return self.values[0]

    def field(self, z: Tensor, step: int) -> Tensor:
        self.values.append(0.5 * (self.spring.stiffness * (z - self.spring.rest).square()).sum())
        if step == 1 and self.spring.dies(self.t):
            die()
        return self.spring.stiffness * (z - self.spring.rest)

    def close(self) -> LocalReport:
        mean = 0.9 * self.statistics["mean"] + 0.1 * self.spring.rest[:2]
        return LocalReport({"loss": float(mean.sum())}, {"mean": mean, "count": self.statistics["count"] + 1})


@dataclass(frozen=True)
class Federation:
    """Build the clients, here and in actors. deaths, refusals: rounds by client name."""

    clients: int = 4
    deaths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    refusals: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    marks: Path | None = None
    share_statistics: bool = True

    @property
    def names(self) -> list[str]:
        return [f"client-{number}" for number in range(self.clients)]

    def problem(self) -> FederatedProblem:
        layout = Layout({"omega": (SIZES[0],)}, {"psi": (SIZES[1],)}, dtype=torch.float32)
        random = torch.Generator().manual_seed(5)
        clients = []
        for name in self.names:
            stiffness = 0.5 + torch.rand(sum(SIZES), generator=random)
            rest = torch.randn(sum(SIZES), generator=random)
            rounds = (self.deaths.get(name, ()), self.refusals.get(name, ()))
            clients.append(Spring(name, stiffness, rest, *rounds, self.marks))
        return FederatedProblem(
            layout,
            torch.zeros(sum(SIZES)),
            clients,
            {"mean": torch.zeros(2), "count": torch.tensor(0)},
            share_statistics=self.share_statistics,
            groups={name: "even" if number % 2 == 0 else "odd" for number, name in enumerate(self.names)},
        )

    def __call__(self) -> ActorShare:
        return ActorShare(self.problem())
