"""A stack's state from round to round, in tensors that are updated in place so that CUDA graphs can replay on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.engine import FederatedState
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.engines.batched.bands import Band
from fedmm.engines.batched.clients import ClientStack, Replica
from fedmm.engines.messages import NEVER

METRICS = ("drift", "consensus_gap", "dual_norm", "loss", "task_loss", "domain_loss", "in_step", "clients")
BY_CLIENT = ("drift", "dual_norm")
_MUST_BE_FINITE = [METRICS.index(name) for name in ("drift", "consensus_gap", "dual_norm", "loss")]


class StackTensors:
    """The tensors of a stack; one replica's part of them makes up a ``FederatedState``.

    Per seated client (every client, unless few take part): z: its point, ``[replicas, seats, size]``; next_clients,
    uploads, codes: a band's named vectors of that shape; rows, keys, view_keys: the draws of the local steps,
    ``[replicas, seats, steps, ...]``; own_statistics, and kept_statistics from before the round: ``[replicas, seats,
    ...]``; losses: task and domain loss summed over the steps, ``[2, replicas, seats]``; first_values: f_i at the first
    step without alpha_i, scalars: what a band's clients report, importance: factors on fields, ``[replicas, seats]``.

    Per client: totals, ``[replicas, clients, size]``; client_statistics; working, verdicts, not_finite, counted_at.
    Per replica: statistics: the shared ones; alive, rounds_done, finished; measures, limits: the round's metrics and
    their upper limits; by_client: the round's metrics of each client.
    """

    def __init__(
        self, replicas: Sequence[Replica], clients: ClientStack, bands: Sequence[Band], layout: Layout, terms: Terms
    ) -> None:
        shape, seated, dtype, device = clients.shape, clients.seats.shape, layout.dtype, layout.device
        self.bands = bands
        self.names = clients.names
        self.z = torch.cat([band.server["z"] for band in bands]).unsqueeze(1).repeat(1, seated[1], 1)
        self.next_clients = [{name: vector.clone() for name, vector in band.seated.items()} for band in bands]
        self.uploads: list[State] = [{} for _ in bands]
        self.codes: list[State] = [{} for _ in bands]
        self.scalars: list[State] = [
            {name: torch.zeros_like(self.z[band.replicas, :, 0]) for name in band.rule.reports} for band in bands
        ]
        self.first_values = torch.zeros(seated, dtype=dtype, device=device)
        self.importance = torch.ones(seated, dtype=dtype, device=device)
        self.noise_keys = torch.zeros(seated, dtype=torch.int64, device=device)
        self.counted_at = torch.full(shape, NEVER, dtype=torch.int64, device=device)
        self.totals: list[State] = [
            {name: torch.zeros_like(self.z[band.replicas]) for name in band.rule.accumulates}
            if terms.keeps_totals(band.rule)
            else {}
            for band in bands
        ]
        self.statistics = _stack([replica.problem.statistics for replica in replicas])
        self.client_statistics = {
            name: value.unsqueeze(1).repeat(1, shape[1], *(1,) * (value.dim() - 1))
            for name, value in self.statistics.items()
        }
        self.own_statistics = {name: clients.seats.take(value) for name, value in self.client_statistics.items()}
        self.kept_statistics = {name: value.clone() for name, value in self.own_statistics.items()}
        self.working = torch.ones(*shape, dtype=torch.bool, device=device)
        self.verdicts = torch.zeros(*shape, dtype=torch.uint8, device=device)
        self.not_finite = torch.zeros(*shape, dtype=torch.bool, device=device)
        self.rows = torch.zeros(*seated, *clients.sampler.drawn, dtype=torch.int64, device=device)
        self.keys = torch.zeros(*seated, clients.most_steps, dtype=torch.int64, device=device)
        self.view_keys = torch.zeros_like(self.keys)
        self.nu = torch.zeros(shape[0], 1, dtype=dtype, device=device)
        self.losses = torch.zeros(2, *seated, dtype=dtype, device=device)
        self.alive = torch.ones(shape[0], dtype=torch.bool, device=device)
        self.finished = [False] * shape[0]
        self.rounds_done = torch.zeros(shape[0], dtype=torch.int64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.measures = torch.zeros(shape[0], len(METRICS), dtype=dtype, device=device)
        self.limits = torch.full_like(self.measures, torch.inf)
        self.by_client = torch.full((shape[0], len(BY_CLIENT), shape[1]), torch.nan, dtype=dtype, device=device)
        self.must_be_finite = torch.tensor(_MUST_BE_FINITE, device=device)  # numbers from the host cannot be captured

    def changed(self) -> list[Tensor]:
        """Return all tensors that a round changes and the next one starts from."""
        states = [band.server for band in self.bands] + [band.clients for band in self.bands]
        states += self.next_clients + self.totals + [band.coded_sent for band in self.bands]
        vectors = [vector for state in states for vector in state.values()]
        statistics = [*self.statistics.values(), *self.client_statistics.values(), *self.kept_statistics.values()]
        flags = [self.alive, self.not_finite, self.verdicts, self.counted_at, self.rounds_done, self.losses, self.step]
        return [self.z, *vectors, *statistics, *flags]

    def place(self, replica: int) -> tuple[int, int]:
        """Return the index of a replica's band, and its place in that band."""
        number = next(n for n, band in enumerate(self.bands) if band.replicas.start <= replica < band.replicas.stop)
        return number, replica - self.bands[number].replicas.start

    def offender(self, replica: int) -> str:
        """Return the first client whose upload was not finite when a replica stopped; empty if all were finite."""
        bad = self.not_finite[replica].nonzero()
        return self.names[replica][int(bad[0])] if len(bad) else ""

    def state(self, replica: int, rounds: int) -> FederatedState:
        """Return a replica's state in the form common to all engines. rounds: how many the stack has run."""
        number, r = self.place(replica)
        band, totals, names = self.bands[number], self.totals[number], self.names[replica]
        done = int(self.rounds_done[replica])
        return FederatedState(
            round=done,
            server={name: vector[r].clone() for name, vector in band.server.items()},
            clients={
                client: {name: vector[r, i].clone() for name, vector in band.clients.items()}
                for i, client in enumerate(names)
            },
            statistics={name: value[replica].clone() for name, value in self.statistics.items()},
            client_statistics={
                client: {name: value[replica, i].clone() for name, value in self.client_statistics.items()}
                for i, client in enumerate(names)
            },
            totals={
                client: {name: vector[r, i].clone() for name, vector in totals.items()}
                for i, client in enumerate(names)
                if totals
            },
            counted={
                client: at for client, at in zip(names, self.counted_at[replica].tolist(), strict=True) if at != NEVER
            },
            offender=self.offender(replica) if done < rounds and not self.finished[replica] else None,
            finished=self.finished[replica],
        )

    def put(self, replica: int, state: FederatedState) -> None:
        """Load a state into a replica."""
        number, r = self.place(replica)
        band, totals, names = self.bands[number], self.totals[number], self.names[replica]
        server = {**band.memory(band.shared(state.server)), **state.server}
        for name, vector in band.server.items():
            vector[r].copy_(server[name])
        counted = [state.counted.get(name, NEVER) for name in names]
        self.counted_at[replica] = torch.tensor(counted, device=self.counted_at.device)
        for stack, own in ((band.clients, state.clients), (totals, state.totals)):
            for name, vector in stack.items():
                vector[r].copy_(torch.stack([own[client][name] for client in names]))
        for name, value in self.statistics.items():
            value[replica].copy_(state.statistics[name])
        for name, value in self.client_statistics.items():
            kept = [state.client_statistics.get(client, state.statistics) for client in names]
            value[replica].copy_(torch.stack([own[name] for own in kept]))
        self.alive[replica] = not state.ended
        self.finished[replica] = state.finished
        self.rounds_done[replica] = state.round
        self.not_finite[replica].copy_(torch.tensor([name == state.offender for name in names]))


def over(flags: Tensor, values: Tensor) -> Tensor:
    """Append axes of size 1 to the flags, which cover the leading axes, so that they broadcast over the values."""
    return flags.view(*flags.shape, *(1,) * (values.dim() - flags.dim()))


def _stack(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([tensors[name] for tensors in states]) for name in states[0]}
