"""The batched engine: runs all clients of all replicas as one program, by the algorithms' own methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, Refusal
from fedmm.core.errors import require
from fedmm.core.problem import LocalReport, NetworkStack, Statistics
from fedmm.engines.batched.bands import Band
from fedmm.engines.batched.capture import capture_graphs, warm_up
from fedmm.engines.batched.clients import ClientStack, Replica
from fedmm.engines.batched.local_steps import LocalWork
from fedmm.engines.batched.settle import REASONS, Settlement
from fedmm.engines.batched.tensors import BY_CLIENT, METRICS, StackTensors
from fedmm.engines.batched.traffic import Traffic
from fedmm.engines.worker import Worked

Capture = Literal["none", "round", "step"]


class Batched:
    """Engine that runs a stack of replicas round by round.

    All replicas must have the same layout, number of clients and batch size; algorithms, hyperparameters, seeds, data
    and local steps may differ. Adjacent replicas of one algorithm form a band, so keep those of one algorithm together.

    network: the replicas' networks as one function. capture: ``round`` or ``step`` records that as a CUDA graph and
    replays it (``step`` is used if rounds differ in shape); ``none`` runs eagerly. chunk: how many clients of each
    replica run at once. around: a context entered for all computation, for example to set the precision. guarded: stop
    a replica before its metrics exceed :meth:`set_limits`.

    If at most half of the clients take part, the absent ones are usually not computed. A replica that is no longer
    finite stops while the others go on; ``rounds_done`` tells how many rounds each has finished.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        network: NetworkStack,
        *,
        capture: Capture = "none",
        chunk: int | None = None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        guarded: bool = False,
    ) -> None:
        self.replicas = replicas
        self.layout = replicas[0].problem.layout
        require(
            capture == "none" or self.layout.device.type == "cuda",
            f"only work on a GPU can be captured, not on {self.layout.device}; use capture='none'",
        )
        self.network = network
        self.terms = replicas[0].terms.structure()
        self.clients = ClientStack(replicas, self.layout)
        self._around = around
        # The graph of a whole round fixes the number of local steps and the vectors that are sent.
        vary = self.clients.steps_vary or any(_may_be_silent(replica.algorithm) for replica in replicas)
        self._capture: Capture = "step" if capture == "round" and vary else capture
        seats = self.clients.seats.shape[1]
        self.chunk = min(chunk or seats, seats)
        self.chunks = [slice(start, min(start + self.chunk, seats)) for start in range(0, seats, self.chunk)]
        self.round = 0
        self._in_pairs = torch.tensor([[replica.algorithm.in_pairs] for replica in replicas], device=self.layout.device)
        everyone = min(self.clients.taking_part) == self.clients.count
        self.all_work = everyone and not (self.terms.may_refuse and any(r.algorithm.in_pairs for r in replicas))
        self.bands = self._make_bands()
        self._shares_statistics = replicas[0].problem.share_statistics
        self.now = StackTensors(replicas, self.clients, self.bands, self.layout, self.terms)
        self._work = LocalWork(
            self.now, self.clients, network, self.layout, self.terms, self.chunks,
            shares_statistics=self._shares_statistics,
        )  # fmt: skip
        self._servers = Settlement(
            self.now, self.clients, self.terms,
            all_counted=self.all_work and not self.terms.may_refuse,
            shares_statistics=self._shares_statistics,
            guarded=guarded,
        )  # fmt: skip
        self._written_nu: list[float] = []
        self._traffic = Traffic(
            replicas, self.now, self.layout, self.terms, self.clients.taking_part,
            shares_statistics=self._shares_statistics,
        )  # fmt: skip
        self._programs: list[Callable[[], None]] | None = None
        self.given_importance: Tensor | None = None
        """Factors on the clients' fields, ``[replicas, clients]``, if a remote server sets them."""

    # Set-up -----------------------------------------------------------------------------------------------------------

    def _make_bands(self) -> list[Band]:
        starts = torch.stack([replica.problem.start for replica in self.replicas])
        bands = []
        for _, group in groupby(range(len(self.replicas)), key=lambda r: _kind(self.replicas[r].algorithm)):
            members = list(group)
            part = slice(members[0], members[-1] + 1)
            algorithms = [self.replicas[r].algorithm for r in members]
            fuse = self._capture != "none"
            bands.append(Band(algorithms, members[0], starts[part], self.clients, self.layout, self.terms, fuse=fuse))
        return bands

    # One round --------------------------------------------------------------------------------------------------------

    def advance(self) -> Tensor:
        """Run a round of every replica that is alive; return its metrics, ``[replicas, metrics]``, on the device.

        This does not wait for the device; read the result only when it is needed.
        """
        self._set_round()
        with self._around():
            if self._capture == "none":
                self._whole_round()
            else:
                self._replay()
        self.round += 1
        return self.now.measures.clone()

    def try_step(self) -> None:
        """Run one local step of the first chunk to measure its cost; discard the stack afterwards."""
        self._set_round()
        with self._around():
            if not all(band.rule.plain for band in self.bands):
                self._work.begin()
            self._work.step(0, 0)

    def _set_round(self) -> None:
        t, rounds = self.round, [replica.rounds for replica in self.replicas]
        self.clients.set_steps(t)
        longest = self.clients.longest
        for band in self.bands:
            band.set_round(t, rounds[band.replicas])
        if not self.all_work:
            invited = self.clients.working(t)
            self.clients.seat(invited)
            working = invited.to(self.layout.device)
            if any(replica.algorithm.ends_pair(t) for replica in self.replicas):
                working &= ~self._in_pairs | (self.now.counted_at == t - 1)
            self.now.working.copy_(working)
        for band in self.bands:
            if band.weighs:
                self._weigh(band, t)
        self.now.rows.copy_(self.clients.rows(t))
        nu = self.clients.nu(t, rounds)
        if nu != self._written_nu:
            self.now.nu.copy_(torch.tensor(nu, dtype=self.layout.dtype).unsqueeze(1))
            self._written_nu = nu
        if self.terms.transmission.private:
            self.now.noise_keys.copy_(self.clients.noise_keys(t))
        if self.network.has_dropout:
            self.now.keys[:, :, :longest].copy_(self.clients.dropout_keys(t))
        if self.clients.view.random:
            self.now.view_keys[:, :, :longest].copy_(self.clients.view_keys(t))

    def _weigh(self, band: Band, t: int) -> None:
        """Set the weights of a band's clients in round t and, if clients are drawn by weight, who takes part."""
        r = band.replicas
        if self.given_importance is not None:
            self.now.importance.copy_(self.given_importance)
            return
        importance = band.importance()
        if band.rule.draws(t) and not self.all_work:
            drawn, importance = self.clients.weighted_draw(t, r, importance)
            self.now.working[r] = drawn
        self.now.importance[r] = importance

    def _whole_round(self) -> None:
        self._work.begin()
        for number, part in enumerate(self.chunks):
            for step in range(self.clients.longest):
                self._work.step(number, step)
            self._work.finish(part, self.round)
        self._servers.settle()

    def traffic(self, replica: int, t: int, in_step: int) -> tuple[int, int]:
        """Return a replica's bytes up and down in round t. in_step: how many clients know the previous broadcast."""
        return self._traffic.in_round(replica, t, in_step)

    # CUDA graphs ------------------------------------------------------------------------------------------------------

    def _replay(self) -> None:
        if self._programs is None:
            self._programs = self._record()
        if self._capture == "round":
            self._programs[0]()
            return
        self._work.begin()
        for program, part in zip(self._programs, self.chunks, strict=True):
            self.now.step.zero_()
            for _ in range(self.clients.longest):
                program()
            self._work.finish(part, self.round)
        self._servers.settle()

    def _record(self) -> list[Callable[[], None]]:
        """Capture the whole round as one graph, or one local step of each chunk."""

        def small_round() -> None:
            self._work.begin()
            for number, part in enumerate(self.chunks):
                self._work.step(number, self.now.step if self._capture == "step" else 0)
                self._work.finish(part, self.round)
            self._servers.settle()

        def one_step(number: int) -> Callable[[], None]:
            def run() -> None:
                self._work.step(number, self.now.step)
                self.now.step.add_(1)

            return run

        warm_up(small_round, self.now.changed())
        if self._capture == "round":
            return capture_graphs([self._whole_round])
        return capture_graphs([one_step(number) for number in range(len(self.chunks))])

    # States -----------------------------------------------------------------------------------------------------------

    @property
    def z(self) -> Tensor:
        """The servers' points, ``[replicas, size]``."""
        return torch.cat([band.server["z"] for band in self.bands])

    @property
    def models(self) -> Tensor:
        """The points used for prediction, ``[replicas, size]``; see :attr:`FederatedState.model`."""
        return torch.cat([band.server.get("average", band.server["z"]) for band in self.bands])

    @property
    def statistics(self) -> Statistics:
        """The servers' running statistics, ``[replicas, ...]``."""
        return self.now.statistics

    @property
    def rounds_done(self) -> Tensor:
        """How many rounds each replica has finished, ``[replicas]``, on the device."""
        return self.now.rounds_done

    @property
    def finished(self) -> Sequence[bool]:
        """Which replicas were ended on purpose."""
        return self.now.finished

    @property
    def alive(self) -> Tensor:
        """Which replicas have not stopped, bool ``[replicas]``, on the device."""
        return self.now.alive.clone()

    def set_limits(self, limits: Sequence[Mapping[str, float] | None]) -> None:
        """Set the upper limits of each replica's metrics in the next round; a replica stops before it exceeds one.

        limits: one entry per replica; None for a replica without limits.
        """
        largest = torch.finfo(self.layout.dtype).max
        table = [[torch.inf if limit is None else limit.get(name, largest) for name in METRICS] for limit in limits]
        finite = [limit is not None for limit in limits]
        wanted = torch.tensor(table, dtype=self.layout.dtype)
        wanted[finite] = wanted[finite].clamp(max=largest)
        self.now.limits.copy_(wanted)

    @property
    def by_client(self) -> Tensor:
        """The last round's metrics of each client, ``[replicas, metrics, clients]``, on the device."""
        return self.now.by_client.clone()

    def clients_of(self, replica: int, measured: Sequence[Sequence[float]]) -> dict[str, dict[str, float]]:
        """Return the metrics of a replica's clients by metric and client name; empty if updates carry noise."""
        if self.terms.transmission.private:
            return {}
        names = self.clients.names[replica]
        found = {
            column: {name: value for name, value in zip(names, values, strict=True) if not math.isnan(value)}
            for column, values in zip(BY_CLIENT, measured, strict=True)
        }
        return {column: values for column, values in found.items() if values}

    @property
    def verdicts(self) -> Tensor:
        """The verdict on each client's update in the last round, uint8 ``[replicas, clients]``, on the device."""
        return self.now.verdicts.clone()

    def refusals(self, replica: int, verdicts: Sequence[int]) -> tuple[Refusal, ...]:
        """Return whose updates were refused, and why, from a replica's verdicts."""
        named = zip(self.clients.names[replica], verdicts, strict=True)
        return tuple(Refusal(name, REASONS[verdict]) for name, verdict in named if verdict in REASONS)

    def offender(self, replica: int) -> str:
        """Return the first client whose upload was not finite when a replica stopped; empty if all were finite."""
        return self.now.offender(replica)

    def worked(self, replica: int) -> dict[str, Worked]:
        """Return each client's results of the last round, counted or not; all clients must have taken part."""
        assert self.clients.seats.everyone
        number, r = self.now.place(replica)
        task, domain = (self.now.losses[:, replica] / self.clients.steps[replica]).double().tolist()
        sources, nu = self.clients.has_source[replica].tolist(), float(self.now.nu[replica])
        worked = {}
        for i, name in enumerate(self.clients.names[replica]):
            own_task = task[i] if sources[i] else 0.0
            metrics = {"loss": own_task - nu * domain[i], "domain_loss": domain[i]}
            if sources[i]:
                metrics["task_loss"] = own_task
            report = LocalReport(
                {} if self.terms.transmission.private else metrics,
                {name: value[replica, i].clone() for name, value in self.now.client_statistics.items()},
            )
            upload, codes, own = (
                {name: vector[r, i].clone() for name, vector in states[number].items()}
                for states in (self.now.uploads, self.now.codes, self.now.next_clients)
            )
            if codes:
                upload = {**codes, **{name: vector for name, vector in upload.items() if name != "z"}}
            scalars = {report: float(numbers[r, i]) for report, numbers in self.now.scalars[number].items()}
            if self.replicas[replica].algorithm.reports_only(self.round - 1):
                upload = {}
            worked[name] = Worked(upload, own, report, scalars)
        return worked

    def prediction_statistics(self, replica: int, clients: Sequence[str]) -> Statistics:
        """Return the mean of some clients' own running statistics."""
        chosen = [self.clients.names[replica].index(name) for name in clients]
        return {
            name: value[replica, chosen].double().mean(dim=0).to(value.dtype)
            for name, value in self.now.client_statistics.items()
        }

    def state(self, replica: int) -> FederatedState:
        """Return a replica's state in the form common to all engines."""
        return self.now.state(replica, self.round)

    def finish(self, replica: int) -> None:
        """End a replica on purpose: it keeps its state while the others go on."""
        self.now.finished[replica] = True
        self.now.alive[replica] = False

    def load(self, states: Sequence[FederatedState]) -> None:
        """Continue from these states, one per replica, all after the same number of rounds.

        A state that has ``ended`` may be of an earlier round; its replica stays stopped.
        """
        count = len(self.replicas)
        require(len(states) == count, f"a stack of {count} replicas needs {count} states, not {len(states)}")
        alive = {state.round for state in states if not state.ended}
        newest = max(state.round for state in states)
        require(alive <= {newest}, "the replicas of a stack must have finished the same number of rounds")
        self.round = newest
        for replica, state in enumerate(states):
            self.now.put(replica, state)

    def restore(self, replica: int, state: FederatedState, algorithm: Algorithm) -> None:
        """Continue one replica from another state of the current round, with other hyperparameters."""
        require(state.round == self.round, f"the replica's state must be from after round {self.round}")
        number, place = self.now.place(replica)
        self.bands[number].algorithms[place] = algorithm
        self.now.put(replica, state)


def _may_be_silent(algorithm: Algorithm) -> bool:
    return type(algorithm).reports_only is not Algorithm.reports_only


def _kind(algorithm: Algorithm) -> tuple[object, ...]:
    return type(algorithm), algorithm.structure()
