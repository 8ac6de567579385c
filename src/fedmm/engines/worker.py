"""A client's part of a round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.compression import algorithms_part, known_point, received, remembered, transmit
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.core.mechanisms import Circumstances, NoiseSource, SeededNoise
from fedmm.core.problem import ClientProblem, LocalReport, Statistics
from fedmm.engines.client_store import Kept
from fedmm.engines.messages import Invitation, Update

_USUAL = Terms()


@dataclass(frozen=True)
class Worked:
    """What a client has after its local steps: its upload as it travels, its new state, and its report.

    Of a report with metrics, those are empty where updates carry noise: they would tell what the noise hides.
    """

    upload: State
    own: State
    report: LocalReport

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
        )


@dataclass(frozen=True)
class Worker:
    """A client with all it needs to work: its problem, the algorithm, its number of local steps.

    terms: how its updates travel. clients: how many take part in a round.
    noise: where the noise in its updates comes from; away from simulations, a secret of the client's own.
    """

    client: ClientProblem
    algorithm: Algorithm
    layout: Layout
    rounds: int
    steps: int
    terms: Terms = field(default=_USUAL)
    clients: int = 1
    noise: NoiseSource = field(default=SeededNoise())

    @property
    def name(self) -> str:
        """The client's name."""
        return self.client.name

    def coefficients(self, t: int) -> Coefficients:
        """The hyperparameters of round t, with the client's number of steps."""
        shared = self.algorithm.coefficients(self.layout, t, self.rounds)
        return Coefficients(shared, steps=self.layout.scalar(self.steps))

    def run(self, t: int, sent: State, own: State, statistics: Statistics, session: int = 0) -> Worked:
        """The local steps of round t, from what was sent, in the form in which it travelled, and the client's state.

        session: the server's; the same round of another one is another question, to be answered with other noise.
        """
        c = self.coefficients(t)
        terms = self.terms
        came, sent = sent, received(terms.broadcasts, sent, known_point(own))
        mine = algorithms_part(own)
        local = self.client.open_round(t, self.rounds, self.steps, statistics)
        z = sent["z"]
        for step in range(self.steps):
            z = self.algorithm.local_step(z, sent, mine, local.field(z, step), c)
        given = None
        if terms.transmission.private:
            came = {**came, **sent, **{f"statistics/{name}": tensor for name, tensor in statistics.items()}}
            given = self._circumstances(t, session, z - sent["z"], came)
        z, wire, memory = transmit(terms.transmission, terms.uploads, z, sent["z"], own, given)
        upload, after = self.algorithm.finish(z, sent, mine, c)
        others = {name: vector for name, vector in upload.items() if name != "z"}
        report = local.close()
        if terms.transmission.private:
            report = replace(report, metrics={})
        vectors = upload if terms.uploads == "exact" else {**wire, **others}
        return Worked(vectors, {**after, **memory, **remembered(terms.broadcasts, sent)}, report)

    def _circumstances(self, t: int, session: int, update: Tensor, came: State) -> Circumstances:
        normal = self.noise.normal(self.name, t, session, update, came)
        return Circumstances(self.layout.min_size, normal.to(self.layout.device), self.clients)
