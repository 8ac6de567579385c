"""A client's part of a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.problem import ClientProblem, LocalReport, Statistics
from fedmm.core.transmission import ExactUpdate, Transmission, arrived


@dataclass(frozen=True)
class Worked:
    """What a client has after its local steps: its upload, its new state, and its report."""

    upload: State
    own: State
    report: LocalReport


@dataclass(frozen=True)
class Worker:
    """A client with all it needs to work: its problem, the algorithm, its number of local steps."""

    client: ClientProblem
    algorithm: Algorithm
    layout: Layout
    rounds: int
    steps: int
    transmission: Transmission = field(default=ExactUpdate())

    @property
    def name(self) -> str:
        """The client's name."""
        return self.client.name

    def coefficients(self, t: int) -> Coefficients:
        """The hyperparameters of round t, with the client's number of steps."""
        shared = self.algorithm.coefficients(self.layout, t, self.rounds)
        return Coefficients(shared, steps=self.layout.scalar(self.steps))

    def run(self, t: int, sent: State, own: State, statistics: Statistics) -> Worked:
        """The local steps of round t, from what was sent and the client's own state."""
        c = self.coefficients(t)
        local = self.client.open_round(t, self.rounds, self.steps, statistics)
        z = sent["z"]
        for step in range(self.steps):
            z = self.algorithm.local_step(z, sent, own, local.field(z, step), c)
        z = arrived(self.transmission, z, sent["z"])
        upload, after = self.algorithm.finish(z, sent, own, c)
        return Worked(upload, after, local.close())
