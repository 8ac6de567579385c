"""Replicas of one algorithm side by side: their states, and their hyperparameters as tensors with a leading axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.compression import algorithms_part, broadcast, first_memory, known_point, remembered
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.engines.batched.fusing import Fused, fused_step


class Band:
    """Consecutive replicas ``first`` .. ``first + len(algorithms) - 1`` of a stack, all of one algorithm.

    server: named vectors ``[replicas, size]``; clients: named vectors ``[replicas, clients, size]``.
    terms: how vectors travel. fuse: run the local step as one kernel on a GPU.
    """

    def __init__(
        self,
        algorithms: Sequence[Algorithm],
        first: int,
        starts: Tensor,
        steps: Tensor,
        layout: Layout,
        terms: Terms,
        *,
        fuse: bool = False,
    ) -> None:
        self.algorithms = list(algorithms)
        self.replicas = slice(first, first + len(algorithms))
        self.layout = layout
        self.rule = algorithms[0]
        clients = steps.shape[1]
        self._coded = terms.broadcasts if terms.broadcasts != "exact" else None
        server = self.rule.init_server(starts)
        sent = self.rule.broadcast(server)
        self.server = _copied({**server, **remembered(terms.broadcasts, sent)})
        per_client = starts.unsqueeze(1).expand(-1, clients, -1)
        sent = {name: vector.unsqueeze(1).expand(-1, clients, -1) for name, vector in sent.items()}
        memory = first_memory(terms.uploads, terms.broadcasts, sent)
        self.clients = _copied({**self.rule.init_client(per_client), **memory})
        self.coded_sent = _copied(known_point(self.server))
        self._steps = steps.unsqueeze(-1)
        self._known: Coefficients | None = None
        self._written: list[Coefficients] = []
        self._fuse = fuse and starts.is_cuda
        self._fused: Fused | None = None

    def set_round(self, t: int, rounds: Sequence[int]) -> None:
        """Bring the coefficients to round t, in place."""
        each = [rule.coefficients(self.layout, t, total) for rule, total in zip(self.algorithms, rounds, strict=True)]
        if self._known is None:
            self._known = _stacked(each)
        elif any(not _same(before, now) for before, now in zip(self._written, each, strict=True)):
            for name, value in _stacked(each).items():
                self._known[name].copy_(value)
        self._written = each

    def local(self, chunk: slice) -> Coefficients:
        """Coefficients for some of the clients: ``[replicas, 1, 1 or size]``, and their own numbers of steps."""
        assert self._known is not None
        return Coefficients(
            {name: value.unsqueeze(1) for name, value in self._known.items()}, steps=self._steps[:, chunk]
        )

    def central(self) -> Coefficients:
        """Coefficients for the server: ``[replicas, 1 or size]``."""
        assert self._known is not None
        return self._known

    def open_round(self) -> None:
        """Code what the server sends, where it is coded: it stays so until the next round."""
        if self._coded:
            now = self.rule.broadcast(algorithms_part(self.server))
            for name, vector in broadcast(self._coded, now, known_point(self.server)).sent.items():
                self.coded_sent[name].copy_(vector)

    def sent(self) -> State:
        """What the server sends, ``[replicas, 1, size]``, to be broadcast over the clients."""
        return {name: vector.unsqueeze(1) for name, vector in self.sent_to_all().items()}

    def sent_to_all(self) -> State:
        """What the server sends, as the clients will know it, ``[replicas, size]``."""
        return self.coded_sent if self._coded else self.rule.broadcast(algorithms_part(self.server))

    def memory(self, sent: State) -> State:
        """What server and clients remember of a broadcast."""
        return remembered(self._coded, sent) if self._coded else {}

    def local_step(self, z: Tensor, gradient: Tensor, scale: Tensor, part: slice) -> Tensor:
        """The algorithm's local step of some of the clients, from the loss gradient and what scales it."""
        own = {name: vector[:, part] for name, vector in algorithms_part(self.clients).items()}
        sent, c = self.sent(), self.local(part)
        if self._fuse and self._fused is None:
            self._fused = fused_step(self.rule, z, gradient, scale, sent, own, c)
            self._fuse = self._fused is not None
        if self._fused is not None:
            return self._fused(z, gradient, scale, sent, own, c)
        return self.rule.local_step(z, sent, own, gradient * scale, c)


def _copied(state: State) -> State:
    return {name: vector.clone() for name, vector in state.items()}


def _stacked(each: Sequence[Coefficients]) -> Coefficients:
    """``[replicas, 1]`` where all are scalars, else ``[replicas, size]``."""
    stacked = Coefficients()
    for name in each[0]:
        values = [coefficients[name] for coefficients in each]
        size = max(value.numel() for value in values)
        stacked[name] = torch.stack([value.expand(size) for value in values]).contiguous()
    return stacked


def _same(before: Coefficients, now: Coefficients) -> bool:
    return all(before[name] is value or torch.equal(before[name], value) for name, value in now.items())
