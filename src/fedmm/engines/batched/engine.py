"""All clients of all replicas as one program: the algorithms' own arithmetic, with leading axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from fedmm.core.aggregation import Groups, Sums, aggregated, group_centre, updates_of
from fedmm.core.algorithm import Algorithm, State
from fedmm.core.engine import FederatedState
from fedmm.core.errors import require
from fedmm.core.inbox import Refusal
from fedmm.core.messages import NEVER
from fedmm.core.objective import RowWeights
from fedmm.core.problem import LocalReport, Statistics
from fedmm.core.seeding import normal
from fedmm.core.stacking import NetworkStack
from fedmm.core.transmission import Circumstances
from fedmm.core.wire import algorithms_part, transmit, vector_bytes
from fedmm.engines.batched.bands import Band
from fedmm.engines.batched.capture import captured, warmed_up
from fedmm.engines.batched.clients import ClientStack, Replica
from fedmm.engines.batched.verdicts import COUNTED, REASONS, judged, mean_over, root_mean_square
from fedmm.engines.worker import Worked

Capture = Literal["none", "round", "step"]
MEASURES = ("drift", "consensus_gap", "dual_norm", "loss", "task_loss", "domain_loss", "in_step", "clients")
BY_CLIENT = ("drift", "dual_norm")
_MUST_BE_FINITE = [MEASURES.index(name) for name in ("drift", "consensus_gap", "dual_norm", "loss")]


class Batched:
    """Runs a stack of replicas, round by round.

    All replicas have the same layout, the same number of clients and batches of one size; algorithms, hyperparameters,
    seeds, data and local steps may differ. Replicas of one algorithm must stand together, and all run equally long.

    network: the replicas' networks as one function. capture: ``round`` or ``step`` replays a CUDA graph of that, and
    ``none`` runs operation by operation. chunk: how many clients of each replica run at once. around: entered for all
    computation, for example to set a precision. guarded: have a round's measures keep to :meth:`set_limits`.

    A replica that ceases to be finite stops where it is, and the others go on: ``rounds_done`` tells how far each came.
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
        self._guarded = guarded
        self._capture: Capture = capture
        count = self.clients.count
        self.chunk = min(chunk or count, count)
        self.chunks = [slice(start, min(start + self.chunk, count)) for start in range(0, count, self.chunk)]
        self.round = 0
        self.all_work = min(self.clients.taking_part) == self.clients.count
        self.bands = self._make_bands()
        self._allocate()
        self._constants = [network.constants(self.clients.which[:, part].flatten()) for part in self.chunks]
        self.bytes_up, self.bytes_down = self._traffic()
        self._programs: list[Callable[[], None]] | None = None

    # Set-up -----------------------------------------------------------------------------------------------------------

    def _make_bands(self) -> list[Band]:
        starts = torch.stack([replica.problem.start for replica in self.replicas])
        bands = []
        for _, group in groupby(range(len(self.replicas)), key=lambda r: type(self.replicas[r].algorithm)):
            members = list(group)
            part = slice(members[0], members[-1] + 1)
            algorithms = [self.replicas[r].algorithm for r in members]
            steps = self.clients.steps[part]
            fuse = self._capture != "none"
            bands.append(Band(algorithms, members[0], starts[part], steps, self.layout, self.terms, fuse=fuse))
        return bands

    def _allocate(self) -> None:
        shape, dtype, device = self.clients.shape, self.layout.dtype, self.layout.device
        self._z = self.z.unsqueeze(1).repeat(1, shape[1], 1)
        self._next_clients = [{name: vector.clone() for name, vector in band.clients.items()} for band in self.bands]
        self._uploads: list[State] = [{} for _ in self.bands]
        self._codes: list[State] = [{} for _ in self.bands]
        self._noise_keys = torch.zeros(*shape, dtype=torch.int64, device=device)
        self._counted_at = torch.full(shape, NEVER, dtype=torch.int64, device=device)
        self._totals: list[State] = [
            {name: torch.zeros_like(self._z[band.replicas]) for name in band.rule.accumulates}
            if self.terms.keeps_totals(band.rule)
            else {}
            for band in self.bands
        ]
        self._shares_statistics = self.replicas[0].problem.share_statistics
        self.statistics = _stack([replica.problem.statistics for replica in self.replicas])
        self._client_statistics = {
            name: value.unsqueeze(1).repeat(1, shape[1], *(1,) * (value.dim() - 1))
            for name, value in self.statistics.items()
        }
        self._kept_statistics = {name: value.clone() for name, value in self._client_statistics.items()}
        self._working = torch.ones(*shape, dtype=torch.bool, device=device)
        self._verdicts = torch.zeros(*shape, dtype=torch.uint8, device=device)
        self._not_finite = torch.zeros(*shape, dtype=torch.bool, device=device)
        self._rows = self.clients.sampler.indices(0).view(*shape, self.clients.most_steps, -1)
        self._keys = torch.zeros(*shape, self.clients.most_steps, dtype=torch.int64, device=device)
        self._view_keys = torch.zeros_like(self._keys)
        self._nu = torch.zeros(shape[0], 1, dtype=dtype, device=device)
        self._written_nu: list[float] = []
        self._losses = torch.zeros(2, *shape, dtype=dtype, device=device)
        self._alive = torch.ones(shape[0], dtype=torch.bool, device=device)
        self.finished = [False] * shape[0]
        self.rounds_done = torch.zeros(shape[0], dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._measures = torch.zeros(shape[0], len(MEASURES), dtype=dtype, device=device)
        self._limits = torch.full_like(self._measures, torch.inf)
        self._by_client = torch.full((shape[0], len(BY_CLIENT), shape[1]), torch.nan, dtype=dtype, device=device)
        self._must_be_finite = torch.tensor(_MUST_BE_FINITE, device=device)  # numbers from the host cannot be captured

    def _traffic(self) -> tuple[list[int], list[int]]:
        """Bytes up and down of a round, for each replica; down, were everything sent in full."""
        size, dtype = self.layout.size, self.layout.dtype
        point, z = (vector_bytes(encoding, size, dtype) for encoding in ("exact", self.terms.uploads))
        shared = (
            sum(v[0].numel() * v.element_size() for v in self.statistics.values()) if self._shares_statistics else 0
        )
        up, down = [], []
        for band in self.bands:
            band.set_round(0, [replica.rounds for replica in self.replicas[band.replicas]])
            own = {name: vector[:, :1] for name, vector in band.clients.items()}
            upload, _ = band.rule.finish(self._z[band.replicas, :1], band.sent(), own, band.local(slice(0, 1)))
            for number in self.clients.taking_part[band.replicas]:
                up.append(number * (z + (len(upload) - 1) * point + shared))
                down.append(number * (len(band.sent()) * point + shared))
        return up, down

    # One round --------------------------------------------------------------------------------------------------------

    def advance(self) -> Tensor:
        """One round of every replica that is still alive; what it measured, ``[replicas, measures]``, on the device.

        Nothing waits for the device: read the result when it is needed.
        """
        self._set_round()
        with self._around():
            if self._capture == "none":
                self._whole_round()
            else:
                self._replay()
        self.round += 1
        return self._measures.clone()

    def try_step(self) -> None:
        """One local step of the first chunk, to measure its cost; for a stack that is thrown away afterwards."""
        self._set_round()
        with self._around():
            self._local_step(0, 0)

    def _set_round(self) -> None:
        t, rounds = self.round, [replica.rounds for replica in self.replicas]
        self._rows.copy_(self.clients.sampler.indices(t).view_as(self._rows))
        for band in self.bands:
            band.set_round(t, rounds[band.replicas])
        if not self.all_work:
            self._working.copy_(self.clients.working(t))
        nu = self.clients.nu(t, rounds)
        if nu != self._written_nu:
            self._nu.copy_(torch.tensor(nu, dtype=self.layout.dtype).unsqueeze(1))
            self._written_nu = nu
        if self.terms.transmission.private:
            self._noise_keys.copy_(self.clients.noise_keys(t))
        if self.network.has_dropout:
            self._keys.copy_(self.clients.dropout_keys(t))
        if self.clients.view.random:
            self._view_keys.copy_(self.clients.view_keys(t))

    def _whole_round(self) -> None:
        self._begin()
        for number, part in enumerate(self.chunks):
            for step in range(self.clients.most_steps):
                self._local_step(number, step)
            self._finish(part)
        self._aggregate()

    def _begin(self) -> None:
        for band in self.bands:
            band.open_round()
            self._z[band.replicas].copy_(band.sent()["z"].expand_as(self._z[band.replicas]))
        for name, value in self._client_statistics.items():
            self._kept_statistics[name].copy_(value)
            if self._shares_statistics:
                value.copy_(self.statistics[name].unsqueeze(1).expand_as(value))
        self._losses.zero_()
        self._step.zero_()

    def _local_step(self, number: int, step: int | Tensor) -> None:
        """One local step of one chunk of the clients, in place."""
        part = self.chunks[number]
        active = (step < self.clients.steps[:, part]) if self.clients.unequal_steps else None
        before_step = None if active is None else {n: v[:, part].clone() for n, v in self._client_statistics.items()}
        gradient, losses = self._gradient(number, step)
        if active is not None and before_step is not None:
            for name, value in before_step.items():
                now = self._client_statistics[name][:, part]
                now.copy_(torch.where(_over(active, value), now, value))
        for band in self.bands:
            r = band.replicas
            before = self._z[r, part]
            after = band.local_step(before, gradient[r], self.clients.scale[r, part], part)
            before.copy_(after if active is None else torch.where(active[r].unsqueeze(-1), after, before))
        self._losses[:, :, part] += losses if active is None else torch.where(active, losses, 0.0)

    def _gradient(self, number: int, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """The loss gradients ``[replicas, clients, size]``, and task and domain losses ``[2, replicas, clients]``."""
        part, shape = self.chunks[number], (len(self.replicas), -1)
        planned = (self._rows[:, part], self._keys[:, part], self._view_keys[:, part])
        if isinstance(step, Tensor):
            rows, keys, view_keys = (each.index_select(2, step).squeeze(2) for each in planned)
        else:
            rows, keys, view_keys = (each[:, :, step] for each in planned)
        rows = rows.flatten(0, 1)
        x = self.clients.view.train(self.clients.pool.x[rows], view_keys.flatten())
        z = self._z[:, part].flatten(0, 1).detach().requires_grad_()
        statistics = {
            name: value[:, part].flatten(0, 1).contiguous() for name, value in self._client_statistics.items()
        }
        dropout = keys.flatten() if self.network.has_dropout else None
        outputs = self.network.outputs(z, x, self._constants[number], dropout, statistics)
        for name, value in statistics.items():
            own = self._client_statistics[name][:, part]
            if own.data_ptr() != value.data_ptr():
                own.copy_(value.view(own.shape))
        domain, task, everything = (each[:, part].flatten(0, 1) for each in self.clients.weights[:3])
        weights = RowWeights(domain, task, everything, has_source=True)
        losses = torch.stack(self.clients.flat[0].objective.losses(outputs, self.clients.pool.y[rows], weights))
        nu = self._nu.expand(-1, part.stop - part.start).flatten()
        (gradient,) = torch.autograd.grad((losses[0] - nu * losses[1]).sum(), z)
        return gradient.view(*shape, self.layout.size), losses.detach().view(2, *shape)

    def _finish(self, part: slice) -> None:
        terms = self.terms
        for number, (band, kept) in enumerate(zip(self.bands, self._next_clients, strict=True)):
            own = {name: vector[:, part] for name, vector in band.clients.items()}
            sent, z = band.sent(), self._z[band.replicas, part]
            given = self._circumstances(band.replicas, part) if terms.transmission.private else None
            came = transmit(terms.transmission, terms.uploads, z, sent["z"], own, given)
            if came.z is not z:
                z.copy_(came.z)
            upload, after = band.rule.finish(z, sent, algorithms_part(own), band.local(part))
            codes = came.wire if terms.uploads != "exact" else {}
            for store, vectors in ((self._uploads[number], upload), (self._codes[number], codes)):
                for name, vector in vectors.items():
                    if name not in store:
                        store[name] = vector.new_zeros(len(vector), self.clients.count, vector.shape[-1])
                    store[name][:, part].copy_(vector)
            for name, vector in {**after, **came.memory, **band.memory(sent)}.items():
                kept[name][:, part].copy_(vector)

    def _circumstances(self, replicas: slice, part: slice) -> Circumstances:
        keys = self._noise_keys[replicas, part].unsqueeze(-1)
        noise = normal(keys, torch.arange(self.layout.size, device=self.layout.device))
        return Circumstances(self.layout.min_size, noise, self.clients.taking_part_in_all[replicas])

    def _aggregate(self) -> None:
        """The servers' update and the measures; a replica that is no longer finite keeps its last good state.

        A client that does not take part, or whose update is refused, keeps its last state as well.
        """
        for number, (band, uploads, kept) in enumerate(zip(self.bands, self._uploads, self._next_clients, strict=True)):
            r = band.replicas
            finite = ~self._working[r]
            finite |= torch.stack([vector.isfinite().all(dim=-1) for vector in uploads.values()]).all(dim=0)
            self._verdicts[r] = judged(self.terms, uploads, band.sent()["z"], self._working[r], self._groups(r))
            counted = self._verdicts[r] == COUNTED
            server, totals = self._server_update(number, counted)
            was_alive = self._alive[r].clone()
            self._not_finite[r] = torch.where(was_alive[:, None], ~finite, self._not_finite[r])
            good = server["z"].isfinite().all(dim=-1)
            if self.terms.on_bad_update == "stop":
                good = good & finite.all(dim=-1)
            self._measures[r] = self._measure(band, counted, kept)
            if self._guarded:
                good = good & self._within_limits(r)
            self._alive[r] &= good
            alive = self._alive[r]
            for name, vector in kept.items():
                chosen = (alive[:, None] & counted).unsqueeze(-1)
                band.clients[name].copy_(torch.where(chosen, vector, band.clients[name]))
            self._counted_at[r] = torch.where(alive[:, None] & counted, self.rounds_done[r, None], self._counted_at[r])
            for name, vector in band.memory(band.sent_to_all()).items():
                band.server[name].copy_(torch.where(alive[:, None], vector, band.server[name]))
            moved = (alive & counted.any(dim=-1))[:, None]
            for name, vector in server.items():
                band.server[name].copy_(torch.where(moved, vector, band.server[name]))
            for name, vector in totals.items():
                self._totals[number][name].copy_(torch.where(moved.unsqueeze(-1), vector, self._totals[number][name]))
        self.rounds_done += self._alive
        self._settle_statistics()

    def _server_update(self, number: int, counted: Tensor) -> tuple[State, State]:
        """The servers' states after a band's uploads, and the sums of all updates where they are kept."""
        band, uploads, totals = self.bands[number], self._uploads[number], self._totals[number]
        sent = band.sent_to_all()
        everyone = self._groups(band.replicas)
        after: State = {}
        if totals:
            updates = updates_of(uploads, sent)
            chosen = counted.unsqueeze(-1)
            after = {name: torch.where(chosen, sum_ + updates[name], sum_) for name, sum_ in totals.items()}
        came = aggregated(
            self.terms.aggregation,
            uploads,
            sent,
            everyone,
            1.0 if self._all_counted else counted.to(self.layout.dtype).mean(dim=-1, keepdim=True),
            band.rule.accumulates,
            counted=None if self._all_counted else counted,
            sums=Sums(totals, after, everyone) if totals else None,
        )
        return band.rule.server_update(algorithms_part(band.server), came, band.central()), after

    @property
    def _all_counted(self) -> bool:
        """Whether every client of every round is counted, for certain."""
        return self.all_work and not self.terms.may_refuse

    def _groups(self, replicas: slice) -> Groups:
        return Groups(self.clients.groups.of[replicas], self.clients.groups.most)

    def _settle_statistics(self) -> None:
        counted = self._verdicts == COUNTED
        some = self._alive & counted.any(dim=-1)
        for name, value in self._client_statistics.items():
            if self._shares_statistics:
                flat = value.reshape(*value.shape[:2], -1)
                if value.is_floating_point():
                    chosen = None if self._all_counted else counted
                    mean = group_centre(self.terms.aggregation, flat, self.clients.groups, chosen)
                else:
                    mean = torch.where(counted.unsqueeze(-1), flat, flat.amin(dim=1, keepdim=True)).amax(dim=1)
                shared = self.statistics[name]
                shared.copy_(torch.where(_over(some, shared), mean.view_as(shared), shared))
            chosen = _over(self._alive[:, None] & counted, value)
            value.copy_(torch.where(chosen, value, self._kept_statistics[name]))

    def _within_limits(self, replicas: slice) -> Tensor:
        """Which replicas measured nothing that is too large or, where there are limits, not finite; ``[replicas]``."""
        measures, limits = self._measures[replicas], self._limits[replicas]
        finite = measures.index_select(1, self._must_be_finite).isfinite().all(dim=-1)
        finite |= (limits == torch.inf).all(dim=-1)
        return finite & ~(measures.abs() > limits).any(dim=-1)

    def _measure(self, band: Band, counted: Tensor, kept: State) -> Tensor:
        """What a round measured for the replicas of a band, ``[replicas, measures]``; kept: the clients' new states."""
        r = band.replicas
        points, z_0 = self._z[r], band.sent()["z"]
        sources = self.clients.has_source[r] & counted
        task, domain = self._losses[:, r] / self.clients.steps[r]
        task = torch.where(self.clients.has_source[r], task, 0.0)
        if self.terms.transmission.private:  # the noise would hide nothing if losses were told
            task, domain = torch.zeros_like(task), torch.zeros_like(domain)
        mean = mean_over(points, counted.unsqueeze(-1), dim=1)
        drift, dual_norm = (points - z_0).norm(dim=-1), torch.zeros_like(task[:, 0])
        self._by_client[r, 0] = torch.where(counted, drift, torch.nan)
        if "dual" in kept:
            squares = torch.where(counted.unsqueeze(-1), kept["dual"], band.clients["dual"]).square().sum(dim=-1)
            dual_norm = squares.mean(dim=-1).sqrt()
            self._by_client[r, 1] = squares.sqrt()
        measures = (
            mean_over(drift, counted),
            root_mean_square(points - mean.unsqueeze(1), counted),
            dual_norm,
            mean_over(task - self._nu[r] * domain, counted),
            torch.where(sources.any(dim=1), mean_over(task, sources), torch.nan),
            mean_over(domain, counted),
            self._in_step(r).sum(dim=1).to(points.dtype),
            counted.sum(dim=1).to(points.dtype),
        )
        return torch.stack(measures, dim=1)

    def _in_step(self, replicas: slice) -> Tensor:
        """Who works in this round and was counted in the last one, so that it knows what was sent then."""
        done = self.rounds_done[replicas, None]
        return self._working[replicas] & (done > 0) & (self._counted_at[replicas] == done - 1)

    def sent_bytes(self, replica: int, in_step: int) -> int:
        """What a replica's server sent in a round, where so many clients could be sent codes."""
        if self.terms.broadcasts == "exact":
            return self.bytes_down[replica]
        band, _ = self._band(replica)
        size, dtype = self.layout.size, self.layout.dtype
        saved = vector_bytes("exact", size, dtype) - vector_bytes(self.terms.broadcasts, size, dtype)
        return self.bytes_down[replica] - in_step * len(band.coded_sent) * saved

    # CUDA graphs ------------------------------------------------------------------------------------------------------

    def _replay(self) -> None:
        if self._programs is None:
            self._programs = self._record()
        if self._capture == "round":
            self._programs[0]()
            return
        self._begin()
        for program, part in zip(self._programs, self.chunks, strict=True):
            self._step.zero_()
            for _ in range(self.clients.most_steps):
                program()
            self._finish(part)
        self._aggregate()

    def _record(self) -> list[Callable[[], None]]:
        """The whole round as one graph, or one local step of each chunk."""

        def small_round() -> None:
            self._begin()
            for number, part in enumerate(self.chunks):
                self._local_step(number, self._step if self._capture == "step" else 0)
                self._finish(part)
            self._aggregate()

        def one_step(number: int) -> Callable[[], None]:
            def run() -> None:
                self._local_step(number, self._step)
                self._step.add_(1)

            return run

        warmed_up(small_round, self._state_tensors())
        if self._capture == "round":
            return captured([self._whole_round])
        return captured([one_step(number) for number in range(len(self.chunks))])

    def _state_tensors(self) -> list[Tensor]:
        states = [band.server for band in self.bands] + [band.clients for band in self.bands]
        states += self._next_clients + self._totals + [band.coded_sent for band in self.bands]
        vectors = [vector for state in states for vector in state.values()]
        statistics = [*self.statistics.values(), *self._client_statistics.values(), *self._kept_statistics.values()]
        flags = [self._alive, self._not_finite, self._verdicts, self._counted_at, self.rounds_done]
        flags += [self._losses, self._step]
        return [self._z, *vectors, *statistics, *flags]

    # States -----------------------------------------------------------------------------------------------------------

    @property
    def z(self) -> Tensor:
        """The servers' points, ``[replicas, size]``."""
        return torch.cat([band.server["z"] for band in self.bands])

    @property
    def alive(self) -> Tensor:
        """Which replicas have not stopped, bool ``[replicas]``, on the device."""
        return self._alive.clone()

    def set_limits(self, limits: Sequence[Mapping[str, float] | None]) -> None:
        """The most that each measure of each replica may be in the next round; a replica stops before it is more.

        None for a replica that is not looked at.
        """
        largest = torch.finfo(self.layout.dtype).max
        table = [[torch.inf if each is None else each.get(name, largest) for name in MEASURES] for each in limits]
        finite = [each is not None for each in limits]
        wanted = torch.tensor(table, dtype=self.layout.dtype)
        wanted[finite] = wanted[finite].clamp(max=largest)
        self._limits.copy_(wanted)

    @property
    def by_client(self) -> Tensor:
        """What the last round measured of each client, ``[replicas, measures, clients]``, on the device."""
        return self._by_client.clone()

    def clients_of(self, replica: int, measured: Sequence[Sequence[float]]) -> dict[str, dict[str, float]]:
        """What a round measured of a replica's clients, by measure and name; nothing where updates carry noise."""
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
        """What became of each client's update in the last round, uint8 ``[replicas, clients]``, on the device."""
        return self._verdicts.clone()

    def refusals(self, replica: int, verdicts: Sequence[int]) -> tuple[Refusal, ...]:
        """Whose updates were not counted, and why, from a replica's verdicts."""
        named = zip(self.clients.names[replica], verdicts, strict=True)
        return tuple(Refusal(name, REASONS[verdict]) for name, verdict in named if verdict in REASONS)

    def offender(self, replica: int) -> str:
        """The first client whose upload was not finite when a replica stopped; empty where all were."""
        bad = self._not_finite[replica].nonzero()
        return self.clients.names[replica][int(bad[0])] if len(bad) else ""

    def worked(self, replica: int) -> dict[str, Worked]:
        """What each client of a replica has made of the last round, whatever became of its update."""
        number = next(n for n, band in enumerate(self.bands) if band.replicas.start <= replica < band.replicas.stop)
        r = replica - self.bands[number].replicas.start
        task, domain = (self._losses[:, replica] / self.clients.steps[replica]).double().tolist()
        sources, nu = self.clients.has_source[replica].tolist(), float(self._nu[replica])
        worked = {}
        for i, name in enumerate(self.clients.names[replica]):
            own_task = task[i] if sources[i] else 0.0
            metrics = {"loss": own_task - nu * domain[i], "domain_loss": domain[i]}
            if sources[i]:
                metrics["task_loss"] = own_task
            report = LocalReport(
                {} if self.terms.transmission.private else metrics,
                {name: value[replica, i].clone() for name, value in self._client_statistics.items()},
            )
            upload, codes, own = (
                {name: vector[r, i].clone() for name, vector in each[number].items()}
                for each in (self._uploads, self._codes, self._next_clients)
            )
            if codes:
                upload = {**codes, **{name: vector for name, vector in upload.items() if name != "z"}}
            worked[name] = Worked(upload, own, report)
        return worked

    def prediction_statistics(self, replica: int, clients: Sequence[str]) -> Statistics:
        """The mean of some clients' own running statistics."""
        chosen = [self.clients.names[replica].index(name) for name in clients]
        return {
            name: value[replica, chosen].double().mean(dim=0).to(value.dtype)
            for name, value in self._client_statistics.items()
        }

    def state(self, replica: int) -> FederatedState:
        """Everything one replica is, as every engine has it."""
        band, totals = self._band(replica)
        r = replica - band.replicas.start
        names = self.clients.names[replica]
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
                client: {name: value[replica, i].clone() for name, value in self._client_statistics.items()}
                for i, client in enumerate(names)
            },
            totals={
                client: {name: vector[r, i].clone() for name, vector in totals.items()}
                for i, client in enumerate(names)
                if totals
            },
            counted={
                client: at for client, at in zip(names, self._counted_at[replica].tolist(), strict=True) if at != NEVER
            },
            offender=self.offender(replica) if done < self.round and not self.finished[replica] else None,
            finished=self.finished[replica],
        )

    def finish(self, replica: int) -> None:
        """Have a replica stay as it is while the others go on."""
        self.finished[replica] = True
        self._alive[replica] = False

    def load(self, states: Sequence[FederatedState]) -> None:
        """Go on from these states, one a replica, all after the same number of rounds.

        A state that has ``ended`` is that of a replica that stopped, then or earlier: it stays stopped.
        """
        count = len(self.replicas)
        require(len(states) == count, f"a stack of {count} replicas goes on from {count} states, not {len(states)}")
        alive = {state.round for state in states if not state.ended}
        newest = max(state.round for state in states)
        require(alive <= {newest}, "the replicas of a stack must have finished equally many rounds")
        self.round = newest
        for replica, state in enumerate(states):
            self._put(replica, state)

    def restore(self, replica: int, state: FederatedState, algorithm: Algorithm) -> None:
        """Have one replica go on from another state, after as many rounds as all have, with other hyperparameters."""
        require(state.round == self.round, f"the state of a replica must be that after round {self.round}")
        band, _ = self._band(replica)
        band.algorithms[replica - band.replicas.start] = algorithm
        self._put(replica, state)

    def _put(self, replica: int, state: FederatedState) -> None:
        band, totals = self._band(replica)
        r, names = replica - band.replicas.start, self.clients.names[replica]
        server = {**band.memory(band.rule.broadcast(algorithms_part(state.server))), **state.server}
        for name, vector in band.server.items():
            vector[r].copy_(server[name])
        counted = [state.counted.get(name, NEVER) for name in names]
        self._counted_at[replica] = torch.tensor(counted, device=self._counted_at.device)
        for stack, own in ((band.clients, state.clients), (totals, state.totals)):
            for name, vector in stack.items():
                vector[r].copy_(torch.stack([own[client][name] for client in names]))
        for name, value in self.statistics.items():
            value[replica].copy_(state.statistics[name])
        for name, value in self._client_statistics.items():
            kept = [state.client_statistics.get(client, state.statistics) for client in names]
            value[replica].copy_(torch.stack([each[name] for each in kept]))
        self._alive[replica] = not state.ended
        self.finished[replica] = state.finished
        self.rounds_done[replica] = state.round
        self._not_finite[replica].copy_(torch.tensor([name == state.offender for name in names]))

    def _band(self, replica: int) -> tuple[Band, State]:
        """The band that a replica stands in, and its sums of updates where they are kept."""
        number = next(n for n, band in enumerate(self.bands) if band.replicas.start <= replica < band.replicas.stop)
        return self.bands[number], self._totals[number]


def _over(flags: Tensor, values: Tensor) -> Tensor:
    """Flags of the leading axes, with as many axes as the values have."""
    return flags.view(*flags.shape, *(1,) * (values.dim() - flags.dim()))


def _stack(each: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}
