"""The readable reference: clients one after the other, in this process."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm, Coefficients, State, steps_by_client
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.errors import Diverged, require
from fedmm.core.problem import FederatedProblem, Statistics


class InProcess:
    """Runs a federation's rounds client by client. Clients are visited, and sums are taken, in order of their names."""

    def __init__(self, problem: FederatedProblem, algorithm: Algorithm, rounds: int) -> None:
        names = [client.name for client in problem.clients]
        require(bool(names), "a federation needs at least one client")
        twice = [name for name in names if names.count(name) > 1]
        require(not twice, f"two clients are called {twice[0]!r}; give every client its own name" if twice else "")
        self.problem = problem
        self.algorithm = algorithm
        self.rounds = rounds
        self._steps = steps_by_client(algorithm.steps, problem.listed or names)
        self._clients = sorted(problem.clients, key=lambda client: client.name)
        algorithm.coefficients(problem.layout, 0, rounds)  # refuses groups of parameters that are not there

    def start(self) -> FederatedState:
        z = self.problem.start
        return FederatedState(
            round=0,
            server=self.algorithm.init_server(z),
            clients={client.name: self.algorithm.init_client(z) for client in self._clients},
            statistics=self.problem.statistics,
            client_statistics={client.name: self.problem.statistics for client in self._clients},
        )

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        began = time.perf_counter()
        algorithm, t = self.algorithm, state.round
        shared = algorithm.coefficients(self.problem.layout, t, self.rounds)
        sent = algorithm.broadcast(state.server)
        points: list[Tensor] = []
        uploads: list[State] = []
        clients: dict[str, State] = {}
        statistics: dict[str, Statistics] = {}
        metrics: dict[str, list[float]] = defaultdict(list)

        for client in self._clients:
            steps = self._steps[client.name]
            c = Coefficients(shared, steps=self.problem.layout.scalar(steps))
            own = state.clients[client.name]
            before = state.statistics if self.problem.share_statistics else state.client_statistics[client.name]
            local = client.open_round(t, self.rounds, steps, before)
            z = sent["z"]
            for step in range(steps):
                z = algorithm.local_step(z, sent, own, local.field(z, step), c)
            upload, clients[client.name] = algorithm.finish(z, sent, own, c)
            report = local.close()
            if not all(bool(vector.isfinite().all()) for vector in upload.values()):
                raise Diverged(client.name, t + 1)
            points.append(z)
            uploads.append(upload)
            statistics[client.name] = report.statistics
            for name, value in report.metrics.items():
                metrics[name].append(value)

        stacked = {name: torch.stack([upload[name] for upload in uploads]) for name in uploads[0]}
        travelling = statistics if self.problem.share_statistics else {}
        server = algorithm.server_update(state.server, stacked, shared)
        if not bool(server["z"].isfinite().all()):
            raise Diverged("", t + 1)
        next_state = FederatedState(
            round=t + 1,
            server=server,
            clients=clients,
            statistics=_mean_statistics(statistics, state.statistics) if travelling else state.statistics,
            client_statistics=statistics,
        )
        record = RoundRecord(
            round=t + 1,
            **distances(torch.stack(points), sent["z"], clients),
            bytes_up=sum(_bytes(upload) for upload in uploads) + sum(_bytes(own) for own in travelling.values()),
            bytes_down=len(self._clients) * (_bytes(sent) + (_bytes(state.statistics) if travelling else 0)),
            seconds=time.perf_counter() - began,
            metrics={name: sum(values) / len(values) for name, values in metrics.items()},
        )
        return next_state, record


def distances(points: Tensor, z_0: Tensor, clients: Mapping[str, State]) -> dict[str, float]:
    """``drift``, ``consensus_gap`` and ``dual_norm`` of a round, from the clients' points ``[clients, size]``."""
    duals = [own["dual"] for own in clients.values() if "dual" in own]
    return {
        "drift": float((points - z_0).norm(dim=-1).mean()),
        "consensus_gap": _root_mean_square(points - points.mean(dim=0)),
        "dual_norm": _root_mean_square(torch.stack(duals)) if duals else 0.0,
    }


def _root_mean_square(vectors: Tensor) -> float:
    return float(vectors.square().sum(dim=-1).mean().sqrt())


def _mean_statistics(by_client: Mapping[str, Statistics], before: Statistics) -> Statistics:
    mean: Statistics = {}
    for name in before:
        stacked = torch.stack([own[name] for own in by_client.values()])
        mean[name] = stacked.mean(dim=0) if stacked.is_floating_point() else stacked.amax(dim=0)
    return mean


def _bytes(vectors: Mapping[str, Tensor]) -> int:
    return sum(vector.numel() * vector.element_size() for vector in vectors.values())
