"""Runs that measure updates as deployed runs' norm bound does, with configurable bounds and a hostile site."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedmm.config.schema import Experiment
from fedmm.core.engine import Norms
from fedmm.core.errors import Diverged
from fedmm.engines.inbox import UsualNorms
from fedmm.engines.messages import Invitation, Update
from fedmm.engines.server import Server
from fedmm.remote.engine import Host
from fedmm.remote.messaging import Exchange, Messaging
from fedmm.runs.build import DataCache, prepare

MOST = 10.0
"""How many times its initial norm the point of a calm run may reach, and its first loss (or 1) a loss."""
HOSTILE = "source-1"
Measured = tuple[float, float | None, float]
"""An update's norm, the median of the others' norms (None if there are none), and the initial model's norm."""


@dataclass(frozen=True)
class Watched(UsualNorms):
    """The bound with a configurable floor; it records everything that it compares in ``noted``."""

    floor: float = 1.0
    noted: list[Measured] = field(default_factory=list)

    def refusals(self, norms: Mapping[str, Norms]) -> dict[str, str]:
        compared = {**self.known, **norms}
        for client, own in norms.items():
            for part, norm in own.items():
                others = self.others(client, part, compared)
                self.noted.append((norm, others[len(others) // 2] if others else None, self.harmless[part]))
        return super().refusals(norms)

    def limit(self, part: str, others: list[float]) -> float:
        harmless = self.harmless.get(part, 0.0)
        return max(self.floor * harmless, self.times * others[len(others) // 2]) if others else self.times * harmless


class WatchingServer(Server):
    """A deployed run's server with configurable bounds."""

    times = 1e30
    floor = 1.0

    def usual_norms(self, known: Mapping[str, Norms]) -> Watched:
        assert self._harmless is not None
        self.watched = Watched(self._harmless, known, self.times, self.steps, self.floor)
        return self.watched


@dataclass
class Attack(Exchange):
    """Scale one site's update by ``scale``. 0: reverse it, at nine tenths of the bound; NaN: the site is away."""

    scale: float
    server: WatchingServer | None = None

    def invited(self, client: str, invitation: Invitation) -> bool:
        self.sent = invitation.sent["z"]
        return math.isfinite(self.scale) or client != HOSTILE

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        return [self._spoilt(answer, answers) if answer.client == HOSTILE else answer for answer in answers]

    def _spoilt(self, own: Update, answers: Sequence[Update]) -> Update:
        change = own.vectors["z"] - self.sent
        scale = self.scale
        if scale == 0:
            assert self.server is not None
            norms = sorted(float((answer.vectors["z"] - self.sent).norm()) for answer in answers if answer is not own)
            bound = self.server.usual_norms({})
            scale = -0.9 * bound.limit("z", norms) / float(change.norm())
        return replace(own, vectors={**own.vectors, "z": self.sent + scale * change})


def train(
    given: Experiment, cache: DataCache, times: float = 1e30, floor: float = 1.0, exchange: Attack | None = None
) -> dict[str, Any]:
    """Train a run as a deployed server would see it; return what was compared and how it ended."""
    ready = prepare(given, cache)
    engine = Messaging(ready.problem, ready.algorithm, ready.rounds, ready.terms, exchange)
    server = WatchingServer(ready.problem, ready.algorithm, ready.rounds, ready.terms, bounded=True)
    server.times, server.floor = times, floor
    engine.server, engine.host = server, Host(server)
    if exchange:
        exchange.server = server
    state, first = engine.start(), float(ready.problem.start.norm())
    noted: list[Measured] = []
    losses: dict[str, float] = {}
    counted: list[Mapping[str, float]] = []
    refused: list[str] = []
    calm = True
    try:
        while state.round < ready.rounds:
            state, record = engine.run_round(state)
            noted += server.watched.noted
            losses = {**record.metrics, **losses}
            counted.append(record.by_client["drift"])
            refused += [each.client for each in record.refused]
            grown = [value > MOST * max(1.0, losses[name]) for name, value in record.metrics.items() if name != "loss"]
            calm = calm and not any(grown) and float(state.z.norm()) <= MOST * first
    except Diverged:
        calm = False
    return {
        "calm": calm,
        "rounds": state.round,
        "noted": noted,
        "refused": len(refused),
        "hostile_refused": refused.count(HOSTILE),
        "hostile_counted": sum(HOSTILE in each for each in counted),
        "measured": ready.evaluate(state) if exchange else {},
    }


def needed(measured: Measured, floor: float) -> float:
    """Return the smallest factor with which an update passes."""
    norm, median, first = measured
    if norm <= floor * first and median is not None:
        return 0.0
    other = first if median is None else median
    return norm / other if other else math.inf
