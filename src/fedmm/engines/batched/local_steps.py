"""The clients' part of a round: their local steps, and what they send."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedmm.core.compression import algorithms_part, transmit
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.core.mechanisms import Circumstances
from fedmm.core.objective import RowWeights, sam_step
from fedmm.core.problem import NetworkStack
from fedmm.core.seeding import normal
from fedmm.engines.batched.clients import ClientStack
from fedmm.engines.batched.tensors import StackTensors, over


class LocalWork:
    """The work of all clients, in place; chunks: those that run at once."""

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
        self._constants = [network.constants(clients.which[:, part].flatten()) for part in chunks]

    def begin(self) -> None:
        """Every client where the server is, and nothing summed yet."""
        now = self._now
        for band in now.bands:
            band.open_round()
            now.z[band.replicas].copy_(band.sent()["z"].expand_as(now.z[band.replicas]))
        for name, value in now.client_statistics.items():
            now.kept_statistics[name].copy_(value)
            if self._shares_statistics:
                value.copy_(now.statistics[name].unsqueeze(1).expand_as(value))
        now.losses.zero_()
        now.step.zero_()

    def step(self, number: int, step: int | Tensor) -> None:
        """One local step of one chunk of the clients, in place."""
        now = self._now
        part = self.chunks[number]
        active = (step < self._clients.steps[:, part]) if self._clients.unequal_steps else None
        before_step = None if active is None else {n: v[:, part].clone() for n, v in now.client_statistics.items()}
        gradient, losses = self._gradient(number, step)
        if active is not None and before_step is not None:
            for name, value in before_step.items():
                own = now.client_statistics[name][:, part]
                own.copy_(torch.where(over(active, value), own, value))
        for band in now.bands:
            r = band.replicas
            before = now.z[r, part]
            after = band.local_step(before, gradient[r], self._clients.scale[r, part], part)
            before.copy_(after if active is None else torch.where(active[r].unsqueeze(-1), after, before))
        now.losses[:, :, part] += losses if active is None else torch.where(active, losses, 0.0)

    def _gradient(self, number: int, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """The loss gradients ``[replicas, clients, size]``, and task and domain losses ``[2, replicas, clients]``."""
        now = self._now
        part, shape = self.chunks[number], (len(now.z), -1)
        planned = (now.rows[:, part], now.keys[:, part], now.view_keys[:, part])
        if isinstance(step, Tensor):
            rows, keys, view_keys = (each.index_select(2, step).squeeze(2) for each in planned)
        else:
            rows, keys, view_keys = (each[:, :, step] for each in planned)
        rows = rows.flatten(0, 1)
        x = self._clients.view.train(self._clients.pool.x[rows], view_keys.flatten())
        z = now.z[:, part].flatten(0, 1).detach().requires_grad_()
        statistics = {name: value[:, part].flatten(0, 1).contiguous() for name, value in now.client_statistics.items()}
        dropout = keys.flatten() if self._network.has_dropout else None
        outputs = self._network.outputs(z, x, self._constants[number], dropout, statistics)
        for name, value in statistics.items():
            own = now.client_statistics[name][:, part]
            if own.data_ptr() != value.data_ptr():
                own.copy_(value.view(own.shape))
        domain, task, everything, target = (each[:, part].flatten(0, 1) for each in self._clients.weights[:4])
        weights = RowWeights(domain, task, everything, target, has_source=True)
        objective = self._clients.flat[0].objective
        losses = torch.stack(objective.losses(outputs, self._clients.pool.y[rows], weights))
        nu = now.nu.expand(-1, part.stop - part.start).flatten()
        value = losses[0] - nu * losses[1]
        target_loss = objective.target_losses(outputs, weights)
        if target_loss is not None:
            value = value + self._clients.target_weight[:, part].flatten() * target_loss
        sharpened = self._clients.sam_radius is not None
        (gradient,) = torch.autograd.grad(value.sum(), z, retain_graph=sharpened)
        if self._clients.sam_radius is not None:
            (plain,) = torch.autograd.grad(losses[0].sum(), z)
            radius = self._clients.sam_radius[:, part].flatten().unsqueeze(-1)
            there = (z.detach() + sam_step(plain, radius)).requires_grad_()
            passing = {name: own.clone() for name, own in statistics.items()}
            outputs = self._network.outputs(there, x, self._constants[number], dropout, passing)
            task_loss = objective.task_loss(outputs, self._clients.pool.y[rows], weights)
            gradient = gradient + (torch.autograd.grad(task_loss.sum(), there)[0] - plain)
        return gradient.view(*shape, self._layout.size), losses.detach().view(2, *shape)

    def finish(self, part: slice) -> None:
        """What some of the clients send, and what they keep."""
        now, terms = self._now, self._terms
        for number, (band, kept) in enumerate(zip(now.bands, now.next_clients, strict=True)):
            own = {name: vector[:, part] for name, vector in band.clients.items()}
            sent, z = band.sent(), now.z[band.replicas, part]
            given = self._circumstances(band.replicas, part) if terms.transmission.private else None
            came = transmit(terms.transmission, terms.uploads, z, sent["z"], own, given)
            if came.z is not z:
                z.copy_(came.z)
            upload, after = band.rule.finish(z, sent, algorithms_part(own), band.local(part))
            codes = came.wire if terms.uploads != "exact" else {}
            for store, vectors in ((now.uploads[number], upload), (now.codes[number], codes)):
                for name, vector in vectors.items():
                    if name not in store:
                        store[name] = vector.new_zeros(len(vector), self._clients.count, vector.shape[-1])
                    store[name][:, part].copy_(vector)
            for name, vector in {**after, **came.memory, **band.memory(sent)}.items():
                kept[name][:, part].copy_(vector)

    def _circumstances(self, replicas: slice, part: slice) -> Circumstances:
        keys = self._now.noise_keys[replicas, part].unsqueeze(-1)
        noise = normal(keys, torch.arange(self._layout.size, device=self._layout.device))
        return Circumstances(self._layout.min_size, noise, self._clients.taking_part_in_all[replicas])
