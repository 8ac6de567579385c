"""A client's part of a round, and the states that it keeps until it knows which one the server counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from fedmm.core.algorithm import Algorithm, Coefficients, State, kept_of
from fedmm.core.compression import (
    algorithms_part,
    decode_broadcast,
    keep_back,
    known_point,
    remember,
    transmit,
    transmit_others,
)
from fedmm.core.errors import FedmmError
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.core.mechanisms import Circumstances, NoiseSource, SeededNoise
from fedmm.core.problem import ClientProblem, LocalReport, LocalRound, Statistics, ValuedRound
from fedmm.core.projections import Projection
from fedmm.core.validation import at_least
from fedmm.engines.messages import Invitation, Update


class Kept(NamedTuple):
    """What a client keeps after a round: the algorithm's state, and its running statistics."""

    own: State
    statistics: Statistics


class ClientMemory:
    """The states after a client's last rounds, by round.

    A client cannot know whether its upload was counted: it may be lost, late or refused. So it keeps its new state
    beside the old one, *before* it uploads, and goes on from whichever the server says was counted. Then what the
    client adds up and what the server adds up stay equal whatever fails in between.

    depth: how many states are kept, at least 2. A server that goes back several rounds after a crash needs that many
        more, or has to restore the client from the sums it keeps.
    held: states to begin with, for example from a file.
    """

    def __init__(self, held: Mapping[int, Kept] | None = None, *, depth: int = 2) -> None:
        at_least("depth", depth, 2)
        self._held = dict(held or {})
        self._depth = depth

    @property
    def held(self) -> Mapping[int, Kept]:
        """The states by round: what a client must store to survive a crash."""
        return self._held

    def state_for(self, counted: int) -> Kept | None:
        """The state after the round in which the server last counted this client; None if it is lost.

        What came of later rounds was not counted, and never will be.
        """
        self._held = {round: kept for round, kept in self._held.items() if round <= counted}
        return self._held.get(counted)

    def remember(self, round: int, kept: Kept) -> None:
        """Keep the state after a round, and of the older ones the newest."""
        newest = sorted({**self._held, round: kept}.items())[-self._depth :]
        self._held = dict(newest)

    def forget(self, round: int) -> None:
        """Lose a state, as a client does that restarts from an older copy of its files."""
        self._held.pop(round, None)


_USUAL = Terms()


@dataclass(frozen=True)
class Worked:
    """What a client has after its local steps: its upload as it travels, its new state, and its report.

    Of a report with metrics, those are empty if updates carry noise: they would tell what the noise hides.
    scalars: the numbers that the algorithm has its clients report.
    """

    upload: State
    own: State
    report: LocalReport
    scalars: dict[str, float] = field(default_factory=dict)

    @property
    def kept(self) -> Kept:
        """What the client keeps, once its update is counted."""
        return Kept(self.own, self.report.statistics)

    def answer(self, client: str, invitation: Invitation) -> Update:
        """The update by which the client answers an invitation; running statistics travel where they came with it."""
        return Update(
            invitation.round,
            client,
            self.upload,
            self.report.statistics if invitation.statistics else {},
            self.report.metrics,
            invitation.session,
            invitation.counted,
            scalars=self.scalars,
        )


def take_step(
    algorithm: Algorithm,
    local: LocalRound,
    step: int,
    z: Tensor,
    sent: State,
    own: State,
    c: Coefficients,
    projection: Projection | None = None,
    importance: float | None = None,
) -> tuple[Tensor, State]:
    """A client's next point and state, with the fields that the algorithm needs for them.

    importance: what those are multiplied with.
    """
    held = projection or _anywhere

    def field_at(point: Tensor) -> Tensor:
        F = local.field(point, step)
        return F if importance is None else F * importance

    F = G = field_at(z)
    if algorithm.looks:
        G = field_at(held(algorithm.look(z, sent, own, F, c)))
    z, own = algorithm.step(z, sent, own, F, G, c)
    return held(z), own


def _anywhere(z: Tensor) -> Tensor:
    return z


@dataclass(frozen=True)
class Worker:
    """A client with all it needs to work: its problem, the algorithm, its number of local steps.

    terms: how its updates travel. clients: how many take part in a round.
    noise: where the noise in its updates comes from; away from simulations, a secret of the client's own.
    seed: the run's, from which numbers of local steps are drawn. projection: to where constraints allow.
    """

    client: ClientProblem
    algorithm: Algorithm
    layout: Layout
    rounds: int
    steps: int
    terms: Terms = field(default=_USUAL)
    clients: int = 1
    noise: NoiseSource = field(default=SeededNoise())
    seed: int = 0
    projection: Projection | None = None

    @property
    def name(self) -> str:
        """The client's name."""
        return self.client.name

    def steps_in(self, t: int) -> int:
        """The client's number of local steps in round t."""
        return self.algorithm.steps_in(self.steps, self.seed, t)

    def coefficients(self, t: int) -> Coefficients:
        """The hyperparameters of round t, with the client's number of steps."""
        shared = self.algorithm.coefficients(self.layout, t, self.rounds)
        return Coefficients(shared, steps=self.layout.scalar(self.steps_in(t)))

    def run(
        self,
        t: int,
        sent: State,
        own: State,
        statistics: Statistics,
        session: int = 0,
        importance: float | None = None,
    ) -> Worked:
        """The local steps of round t, from what was sent, in the form in which it travelled, and the client's state.

        session: the server's; the same round of another one is another question, to be answered with other noise.
        importance: what the client's field is multiplied with, where the server sets it.
        """
        c = self.coefficients(t)
        terms = self.terms
        came, sent = sent, decode_broadcast(terms.broadcasts, sent, known_point(own))
        mine = algorithms_part(own)
        local = self.client.open_round(t, self.rounds, self.algorithm.most_steps(self.steps), statistics)
        z = sent["z"]
        working = self.algorithm.begin(z, sent, mine, c)
        for step in range(self.steps_in(t)):
            z, working = take_step(self.algorithm, local, step, z, sent, working, c, self.projection, importance)
        given = None
        if terms.transmission.private:
            came = {**came, **sent, **{f"statistics/{name}": tensor for name, tensor in statistics.items()}}
            given = self._circumstances(t, session, z - sent["z"], came)
        silent = self.algorithm.reports_only(t)
        came_of = keep_back(z, own) if silent else transmit(terms.transmission, terms.uploads, z, sent["z"], own, given)
        z, coded, memory = came_of
        upload, after = self.algorithm.finish(z, sent, working, c)
        upload = transmit_others(terms.transmission, self.algorithm, upload, z, sent)
        others = {name: vector for name, vector in upload.items() if name != "z"}
        scalars = self._scalars(local, z, sent, working, c)
        report = local.close()
        if terms.transmission.private:
            report = replace(report, metrics={})
        vectors = upload if terms.uploads == "exact" else {**coded, **others}
        if silent:
            vectors = {}
        kept = {**kept_of(mine, working, after), **memory, **remember(terms.broadcasts, sent)}
        return Worked(vectors, kept, report, scalars)

    def _scalars(self, local: LocalRound, z: Tensor, sent: State, own: State, c: Coefficients) -> dict[str, float]:
        if not self.algorithm.reports:
            return {}
        self.terms.check_reports(self.algorithm)
        if not isinstance(local, ValuedRound):
            raise FedmmError(
                f"{self.algorithm.name} needs the value of each client's function, and client {self.name!r} gives its "
                "field alone; give its rounds a first_value, or use an algorithm without reports, such as fedmm"
            )
        numbers = self.algorithm.report(local.first_value(), z, sent, own, c)
        return {name: float(numbers[name]) for name in self.algorithm.reports}

    def _circumstances(self, t: int, session: int, update: Tensor, came: State) -> Circumstances:
        normal = self.noise.normal(self.name, t, session, update, came)
        return Circumstances(self.layout.min_size, normal.to(self.layout.device), self.clients)
