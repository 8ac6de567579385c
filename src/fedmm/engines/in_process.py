"""The readable reference: clients one after the other, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.federation import Terms
from fedmm.core.mechanisms import SeededNoise
from fedmm.core.problem import FederatedProblem
from fedmm.engines.messages import Update
from fedmm.engines.server import Server
from fedmm.engines.worker import Kept, Worker

_USUAL = Terms()


class InProcess:
    """Runs a federation's rounds client by client. Clients are visited, and sums are taken, in order of their names.

    A client's new state counts when its update does: one that is left out of a round stays as it was.

    problem: the clients' functions and where to start. rounds: how many there will be, for schedules.
    terms: the conditions under which clients take part.
    """

    def __init__(self, problem: FederatedProblem, algorithm: Algorithm, rounds: int, terms: Terms = _USUAL) -> None:
        self.problem = problem
        self.algorithm = algorithm
        self.rounds = rounds
        self.terms = terms
        self.server = Server(problem, algorithm, rounds, terms)
        self.workers = workers(self.server)

    def start(self) -> FederatedState:
        """The state before the first round."""
        return self.server.start()

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        """One round: the state after it, and what is known of it. ``state`` is left as it is."""
        began = time.perf_counter()
        invitations = self.server.invitations(state)
        kept: dict[str, Kept] = {}

        def work() -> Iterator[Update]:
            for name, invitation in invitations.items():
                statistics = state.statistics if self.problem.share_statistics else state.client_statistics[name]
                worked = self.workers[name].run(
                    state.round,
                    invitation.travelling,
                    state.clients[name],
                    statistics,
                    importance=invitation.importance,
                )
                kept[name] = worked.kept
                yield worked.answer(name, invitation)

        return self.server.settle_round(state, invitations, work(), began=began, kept=kept.get)


def workers(server: Server) -> dict[str, Worker]:
    """A worker for each client of a problem, in order of their names."""
    problem = server.problem
    local_workers = {
        client.name: Worker(
            client,
            server.algorithm,
            problem.layout,
            server.rounds,
            server.steps[client.name],
            server.terms,
            server.taking_part,
            SeededNoise(problem.seed),
            problem.seed,
            problem.local_projection,
        )
        for client in problem.clients
    }
    return {name: local_workers[name] for name in server.names}
