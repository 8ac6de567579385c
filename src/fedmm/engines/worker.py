"""A client's part of a round, and the states it keeps until it knows which update the server counted."""

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
    """What a client keeps after a round: its algorithm state and its running statistics."""

    own: State
    statistics: Statistics


class ClientMemory:
    """A client's states after its most recent rounds, keyed by round.

    A client cannot know whether its upload was counted: it may be lost, late or refused. So *before* it uploads, it
    stores its new state beside the old one, and later continues from the one that the server says it counted. The
    client's and the server's running sums thus stay equal whatever fails in between.

    depth: how many states to keep, at least 2. If a server may go back several rounds after a crash, that many more
        are needed; otherwise it must restore the client from the sums it keeps.
    held: initial states, for example from a file.
    """

    def __init__(self, held: Mapping[int, Kept] | None = None, *, depth: int = 2) -> None:
        at_least("depth", depth, 2)
        self._held = dict(held or {})
        self._depth = depth

    @property
    def held(self) -> Mapping[int, Kept]:
        """The states by round, which a client must store to survive a crash."""
        return self._held

    def state_for(self, counted: int) -> Kept | None:
        """Return the state after the round in which the server last counted this client; None if it is lost.

        Drop the states of later rounds: they were not counted, and never will be.
        """
        self._held = {round: kept for round, kept in self._held.items() if round <= counted}
        return self._held.get(counted)

    def remember(self, round: int, kept: Kept) -> None:
        """Store the state after a round, and keep only the newest ``depth`` states."""
        newest = sorted({**self._held, round: kept}.items())[-self._depth :]
        self._held = dict(newest)

    def forget(self, round: int) -> None:
        """Drop a state, as happens to a client that restarts from an older copy of its files."""
        self._held.pop(round, None)


_USUAL = Terms()


@dataclass(frozen=True)
class Worked:
    """A client's results after its local steps: its upload as sent, its new state and its report.

    If updates carry noise, the report has no metrics, because they would reveal what the noise hides.
    scalars: the numbers that the algorithm has its clients report.
    """

    upload: State
    own: State
    report: LocalReport
    scalars: dict[str, float] = field(default_factory=dict)

    @property
    def kept(self) -> Kept:
        """What the client keeps if its update is counted."""
        return Kept(self.own, self.report.statistics)

    def answer(self, client: str, invitation: Invitation) -> Update:
        """Return the update that answers an invitation; it has running statistics only if the invitation had them."""
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
    """Take one local step: return the client's next point and state.

    importance: a factor on the client's field; None for no factor.
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
    """Runs one client's rounds: holds its problem, the algorithm and its number of local steps.

    terms: how updates are transmitted. clients: how many take part in a round.
    noise: the source of the noise in its updates; outside simulations, it uses a secret of the client.
    seed: the run's seed, from which numbers of local steps are drawn. projection: onto the constraints, if any.
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
        """Return the client's number of local steps in round t."""
        return self.algorithm.steps_in(self.steps, self.seed, t)

    def coefficients(self, t: int) -> Coefficients:
        """Return the hyperparameters of round t, including the client's number of steps."""
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
        """Run the local steps of round t.

        sent: the broadcast as it was received, possibly coded. own: the client's state.
        session: the server's session; the same round in another session is a new query, which gets fresh noise.
        importance: the factor on the client's field, if the server sets one.
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
                f"{self.algorithm.name} needs the value of each client's function, but client {self.name!r} reports "
                "only its field; implement first_value in its rounds, or use an algorithm without reports, such as "
                "fedmm"
            )
        numbers = self.algorithm.report(local.first_value(), z, sent, own, c)
        return {name: float(numbers[name]) for name in self.algorithm.reports}

    def _circumstances(self, t: int, session: int, update: Tensor, came: State) -> Circumstances:
        normal = self.noise.normal(self.name, t, session, update, came)
        return Circumstances(self.layout.min_size, normal.to(self.layout.device), self.clients)
