"""The readable reference: clients one after the other, in this process."""

from __future__ import annotations

import time
from dataclasses import replace

from fedmm.core.algorithm import Algorithm, State
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.federation import Terms
from fedmm.core.noise import SeededNoise
from fedmm.core.problem import FederatedProblem, Statistics
from fedmm.engines.messages import Update, size_in_bytes
from fedmm.engines.server import Server, recorded
from fedmm.engines.worker import Worker

_USUAL = Terms()


class InProcess:
    """Runs a federation's rounds client by client. Clients are visited, and sums are taken, in order of their names.

    A client's new state counts when its update does: one that is left out of a round stays as it was.
    """

    def __init__(self, problem: FederatedProblem, algorithm: Algorithm, rounds: int, terms: Terms = _USUAL) -> None:
        self.problem = problem
        self.algorithm = algorithm
        self.rounds = rounds
        self.terms = terms
        self.server = Server(problem, algorithm, rounds, terms)
        self.workers = workers(self.server)

    def start(self) -> FederatedState:
        return first_state(self.server)

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        began = time.perf_counter()
        invitations = self.server.invitations(state)
        inbox = self.server.inbox(invitations)
        own: dict[str, State] = {}
        statistics: dict[str, Statistics] = {}
        bytes_up = 0
        for name, invitation in invitations.items():
            before = state.statistics if self.problem.share_statistics else state.client_statistics[name]
            worked = self.workers[name].run(state.round, invitation.travelling, state.clients[name], before)
            own[name], statistics[name] = worked.own, worked.report.statistics
            travelling = worked.report.statistics if self.problem.share_statistics else {}
            update = Update(
                state.round,
                name,
                worked.upload,
                travelling,
                worked.report.metrics,
                invitation.session,
                invitation.counted,
            )
            bytes_up += size_in_bytes(update.vectors) + size_in_bytes(travelling)
            inbox.put(update)
        inbox.close()

        accepted = inbox.accepted
        settled = self.server.settle(state, accepted)
        after = replace(
            state,
            round=state.round + 1,
            server=settled.server,
            clients={**state.clients, **{name: own[name] for name in accepted}},
            statistics=settled.statistics,
            client_statistics={**state.client_statistics, **{name: statistics[name] for name in accepted}},
            totals=settled.totals,
            counted={**state.counted, **dict.fromkeys(accepted, state.round)},
        )
        bytes_down = sum(
            size_in_bytes(each.travelling) + size_in_bytes(each.statistics) for each in invitations.values()
        )
        return after, recorded(after, state.z, inbox, bytes_up, bytes_down, time.perf_counter() - began)


def workers(server: Server) -> dict[str, Worker]:
    """A worker for each client of a problem, in order of their names."""
    problem = server.problem
    each = {
        client.name: Worker(
            client,
            server.algorithm,
            problem.layout,
            server.rounds,
            server.steps[client.name],
            server.terms,
            server.taking_part,
            SeededNoise(problem.seed),
        )
        for client in problem.clients
    }
    return {name: each[name] for name in server.names}


def first_state(server: Server) -> FederatedState:
    """A federation before its first round."""
    problem = server.problem
    return FederatedState(
        round=0,
        server=server.first(),
        clients={name: server.first_own() for name in server.names},
        statistics=problem.statistics,
        client_statistics=dict.fromkeys(server.names, problem.statistics),
        totals=server.totals(),
    )
