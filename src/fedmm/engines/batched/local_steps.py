"""The clients' part of a round: their local steps, and what they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmm.core.algorithm import kept_of
from fedmm.core.compression import keep_back, transmit, transmit_others
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.core.mechanisms import Circumstances
from fedmm.core.objective import RowWeights, sam_step
from fedmm.core.problem import NetworkStack, Statistics
from fedmm.core.seeding import normal
from fedmm.engines.batched.bands import Band
from fedmm.engines.batched.clients import ClientStack
from fedmm.engines.batched.tensors import StackTensors, over


@dataclass(frozen=True)
class _Chosen:
    """Replicas whose gradients are computed together, and for each chunk their networks' constants."""

    replicas: slice | Tensor
    constants: Sequence[Mapping[str, Tensor]]


class LocalWork:
    """Runs the local steps of all seated clients, in place. chunks: slices of seats that run at once."""

    def __init__(
        self,
        now: StackTensors,
        clients: ClientStack,
        network: NetworkStack,
        layout: Layout,
        terms: Terms,
        chunks: Sequence[slice],
        *,
        shares_statistics: bool,
    ) -> None:
        self._now = now
        self._clients = clients
        self._network = network
        self._layout = layout
        self._terms = terms
        self._shares_statistics = shares_statistics
        self.chunks = chunks
        self._all = self._chosen(slice(None))
        self._looking = [band for band in now.bands if band.rule.looks]
        looking = [replica for band in self._looking for replica in range(len(now.z))[band.replicas]]
        some = 0 < len(looking) < len(now.z)
        self._reported = any(band.rule.reports for band in now.bands)
        self._second = self._chosen(torch.tensor(looking, device=layout.device)) if some else self._all

    def _chosen(self, replicas: slice | Tensor) -> _Chosen:
        which = self._clients.which[replicas]
        return _Chosen(replicas, [self._network.constants(which[:, part].flatten()) for part in self.chunks])

    def begin(self) -> None:
        """Start a round: put every client at the server's point, and reset losses and the step counter."""
        now = self._now
        for band in now.bands:
            band.open_round()
            now.z[band.replicas].copy_(band.sent()["z"].expand_as(now.z[band.replicas]))
            for part in self.chunks:
                band.begin(now.z[band.replicas, part], part)
        for name, value in now.own_statistics.items():
            now.kept_statistics[name].copy_(self._clients.seats.take(now.client_statistics[name]))
            shared = now.statistics[name].unsqueeze(1) if self._shares_statistics else now.kept_statistics[name]
            value.copy_(shared.expand_as(value))
        now.losses.zero_()
        now.step.zero_()

    def step(self, number: int, step: int | Tensor) -> None:
        """Take one local step of one chunk of clients, in place."""
        now = self._now
        part = self.chunks[number]
        active = (step < self._clients.steps[:, part]) if self._clients.unequal_steps else None
        before_step = None if active is None else {n: v[:, part].clone() for n, v in now.own_statistics.items()}
        gradient, losses, values = self._gradient(number, step)
        if self._reported:
            first = now.first_values[:, part]
            if isinstance(step, Tensor):
                first.copy_(torch.where(step == 0, values, first))
            elif step == 0:
                first.copy_(values)
        if active is not None and before_step is not None:
            for name, value in before_step.items():
                own = now.own_statistics[name][:, part]
                own.copy_(torch.where(over(active, value), own, value))
        seconds = iter(self._look(number, step, gradient))
        for band in now.bands:
            r = band.replicas
            before, scale = now.z[r, part], self._scale(band, part)
            moving = None if active is None else active[r]
            if band.rule.plain:
                after = band.local_step(before, gradient[r], scale, part)
            else:
                F = gradient[r] * scale
                after = band.step(before, F, next(seconds) if band.rule.looks else F, part, moving)
            if self._clients.local_projection:
                after = self._clients.local_projection(after)
            before.copy_(after if moving is None else torch.where(moving.unsqueeze(-1), after, before))
        now.losses[:, :, part] += losses if active is None else torch.where(active, losses, 0.0)

    def _look(self, number: int, step: int | Tensor, gradient: Tensor) -> list[Tensor]:
        """Return the signed fields at the second points of each band that looks, computed in one pass."""
        if not self._looking:
            return []
        part = self.chunks[number]
        points = []
        for band in self._looking:
            r = band.replicas
            points.append(band.look(self._now.z[r, part], gradient[r] * self._scale(band, part), part))
        joined = torch.cat(points)
        if self._clients.local_projection:
            joined = self._clients.local_projection(joined)
        found, *_ = self._gradient(number, step, joined)
        each = zip(self._looking, torch.split(found, [len(point) for point in points]), strict=True)
        return [own * self._scale(band, part) for band, own in each]

    def _scale(self, band: Band, part: slice) -> Tensor:
        """Return the factor that turns a band's loss gradients into its clients' signed fields."""
        scale = self._clients.scale[band.replicas, part]
        return scale * self._now.importance[band.replicas, part].unsqueeze(-1) if band.weighs else scale

    def _gradient(self, number: int, step: int | Tensor, second: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradients, losses and values of one chunk in one local step.

        Return loss gradients ``[replicas, clients, size]``, task and domain losses ``[2, replicas, clients]``, and the
        values that were differentiated ``[replicas, clients]``. second: points for a second evaluation of the replicas
        that look; it uses the same batches and leaves running statistics unchanged.
        """
        now = self._now
        part = self.chunks[number]
        chosen = self._all if second is None else self._second
        r = chosen.replicas
        points = now.z[:, part] if second is None else second
        planned = (now.rows[r][:, part], now.keys[r][:, part], now.view_keys[r][:, part])
        if isinstance(step, Tensor):
            rows, keys, view_keys = (planned_rows.index_select(2, step).squeeze(2) for planned_rows in planned)
        else:
            rows, keys, view_keys = (planned_rows[:, :, step] for planned_rows in planned)
        rows = rows.flatten(0, 1)
        x = self._clients.view.train(self._clients.pool.x[rows], view_keys.flatten())
        z = points.flatten(0, 1).detach().requires_grad_()
        statistics = self._statistics(chosen, part, copied=second is not None)
        dropout = keys.flatten() if self._network.has_dropout else None
        outputs = self._network.outputs(z, x, chosen.constants[number], dropout, statistics)
        if second is None:
            self._keep(statistics, part)
        domain, task, everything, target = (weight[r][:, part].flatten(0, 1) for weight in self._clients.weights[:4])
        shares = self._clients.weights.classes
        classes = None if shares is None else shares[r][:, part].flatten(0, 1)
        weights = RowWeights(domain, task, everything, target, has_source=True, classes=classes)
        objective = self._clients.flat[0].objective
        losses = torch.stack(objective.losses(outputs, self._clients.pool.y[rows], weights))
        nu = now.nu[r].expand(-1, part.stop - part.start).flatten()
        value = losses[0] - nu * losses[1]
        target_loss = objective.target_losses(outputs, weights)
        if target_loss is not None:
            value = value + self._clients.target_weight[r][:, part].flatten() * target_loss
        radius = self._clients.sam_radius
        (gradient,) = torch.autograd.grad(value.sum(), z, retain_graph=radius is not None)
        if radius is not None:
            (plain,) = torch.autograd.grad(losses[0].sum(), z)
            ascended = (z.detach() + sam_step(plain, radius[r][:, part].flatten().unsqueeze(-1))).requires_grad_()
            passing = {name: own.clone() for name, own in statistics.items()}
            outputs = self._network.outputs(ascended, x, chosen.constants[number], dropout, passing)
            task_loss = objective.task_loss(outputs, self._clients.pool.y[rows], weights)
            gradient = gradient + (torch.autograd.grad(task_loss.sum(), ascended)[0] - plain)
        shape = (len(points), -1)
        return gradient.view(*shape, self._layout.size), losses.detach().view(2, *shape), value.detach().view(shape)

    def _statistics(self, chosen: _Chosen, part: slice, *, copied: bool) -> Statistics:
        """Return the clients' running statistics ``[networks, ...]``."""
        own_statistics = {name: value[chosen.replicas][:, part] for name, value in self._now.own_statistics.items()}
        flat = {name: value.flatten(0, 1) for name, value in own_statistics.items()}
        return {name: value.clone() if copied else value.contiguous() for name, value in flat.items()}

    def _keep(self, statistics: Statistics, part: slice) -> None:
        for name, value in statistics.items():
            own = self._now.own_statistics[name][:, part]
            if own.data_ptr() != value.data_ptr():
                own.copy_(value.view(own.shape))

    def finish(self, part: slice, t: int) -> None:
        """Compute what a chunk of clients sends in round t and what it keeps, in place."""
        now, terms = self._now, self._terms
        for number, (band, kept) in enumerate(zip(now.bands, now.next_clients, strict=True)):
            own = {name: vector[:, part] for name, vector in band.seated.items()}
            sent, z = band.sent(), now.z[band.replicas, part]
            given = self._circumstances(band.replicas, part) if terms.transmission.private else None
            silent = band.rule.reports_only(t)
            came = (
                keep_back(z, own) if silent else transmit(terms.transmission, terms.uploads, z, sent["z"], own, given)
            )
            if came.z is not z:
                z.copy_(came.z)
            working = band.working(part)
            upload, after = band.rule.finish(z, sent, working, band.local(part))
            upload = transmit_others(terms.transmission, band.rule, upload, z, sent)
            codes = came.coded if terms.uploads != "exact" else {}
            for store, vectors in ((now.uploads[number], upload), (now.codes[number], codes)):
                for name, vector in vectors.items():
                    if name not in store:
                        store[name] = vector.new_zeros(*now.z[band.replicas].shape[:2], vector.shape[-1])
                    store[name][:, part].copy_(vector)
            if band.rule.reports:
                values = (self._clients.alpha * now.first_values)[band.replicas, part]
                numbers = band.rule.report(values, z, sent, working, band.local(part))
                for name, of_all in now.scalars[number].items():
                    of_all[:, part].copy_(numbers[name])
            after = kept_of(own, working, after)
            for name, vector in {**after, **came.memory, **band.memory(sent)}.items():
                kept[name][:, part].copy_(vector)

    def _circumstances(self, replicas: slice, part: slice) -> Circumstances:
        keys = self._now.noise_keys[replicas, part].unsqueeze(-1)
        noise = normal(keys, torch.arange(self._layout.size, device=self._layout.device))
        return Circumstances(self._layout.min_size, noise, self._clients.taking_part_in_all[replicas])
