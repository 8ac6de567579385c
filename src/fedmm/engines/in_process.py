"""The readable reference engine: runs the clients one after another in this process."""

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
    """Engine that runs each round client by client; clients are visited, and sums taken, in order of client name.

    A client's new state is kept only if its update is counted; a client left out of a round keeps its old state.

    problem: the clients' functions and the starting point. rounds: the total number of rounds, for schedules.
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
        """Return the state before the first round."""
        return self.server.start()

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        """Run one round; return the new state and the round's record. ``state`` is not modified."""
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
    """Return a worker for each client of the server's problem, in order of client name."""
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
