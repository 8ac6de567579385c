"""Replicas of one algorithm side by side: their states, and their hyperparameters as tensors with a leading axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.compression import algorithms_part, broadcast, first_memory, known_point, remember
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.engines.batched.clients import ClientStack
from fedmm.engines.batched.fusing import Fused, fused_step
from fedmm.engines.draws import require_per_client


class Band:
    """Consecutive replicas ``first`` .. ``first + len(algorithms) - 1`` of a stack, all of one algorithm.

    server: named vectors ``[replicas, size]``, and per-client numbers ``[replicas, clients]``.
    clients: named vectors ``[replicas, clients, size]``; seated: those of the seated clients, ``[replicas, seats,
        size]``. Vectors that change with every local step have separate buffers, which are updated in place.
    weighs: whether the server sets weights of its clients. stack: the stack's clients. terms: how vectors are sent.
    fuse: run the local step as one kernel on a GPU.
    """

    def __init__(
        self,
        algorithms: Sequence[Algorithm],
        first: int,
        starts: Tensor,
        stack: ClientStack,
        layout: Layout,
        terms: Terms,
        *,
        fuse: bool = False,
    ) -> None:
        self.algorithms = list(algorithms)
        self.replicas = slice(first, first + len(algorithms))
        self.layout = layout
        self.rule = algorithms[0]
        clients = stack.count
        self._coded = terms.broadcasts if terms.broadcasts != "exact" else None
        server = self.rule.init_server(starts)
        sent = self.rule.broadcast(server)
        self._per_client = require_per_client(self.rule, clients, starts)
        self.weighs = self.rule.importance({**server, **self._per_client}) is not None
        self.server = _copy({**server, **self._per_client, **remember(terms.broadcasts, sent)})
        per_client = starts.unsqueeze(1).expand(-1, clients, -1)
        sent = {name: vector.unsqueeze(1).expand(-1, clients, -1) for name, vector in sent.items()}
        memory = first_memory(terms.uploads, terms.broadcasts, sent)
        self.clients = _copy({**self.rule.init_client(per_client), **memory})
        self._seats = stack.seats
        self.seated = {name: self._seats.take(vector, self.replicas) for name, vector in self.clients.items()}
        self.coded_sent = _copy(known_point(self.server))
        self._steps = stack.steps[self.replicas].unsqueeze(-1)
        self._known: Coefficients | None = None
        self._written: list[Coefficients] = []
        self._fuse = fuse and starts.is_cuda
        self._fused: Fused | None = None
        self._changing: State | None = {} if self.rule.plain else None

    def set_round(self, t: int, rounds: Sequence[int]) -> None:
        """Set the coefficients for round t, in place."""
        coefficients = [
            rule.coefficients(self.layout, t, total) for rule, total in zip(self.algorithms, rounds, strict=True)
        ]
        if self._known is None:
            self._known = _stack(coefficients)
        elif any(not _same(before, now) for before, now in zip(self._written, coefficients, strict=True)):
            for name, value in _stack(coefficients).items():
                self._known[name].copy_(value)
        self._written = coefficients

    def local(self, chunk: slice) -> Coefficients:
        """Return coefficients for a chunk of clients, ``[replicas, 1, 1 or size]``, with their numbers of steps."""
        assert self._known is not None
        return Coefficients(
            {name: value.unsqueeze(1) for name, value in self._known.items()}, steps=self._steps[:, chunk]
        )

    def central(self) -> Coefficients:
        """Return coefficients for the server, ``[replicas, 1 or size]``."""
        assert self._known is not None
        return self._known

    def open_round(self) -> None:
        """Copy the seated clients' states to their seats, and code the broadcast if broadcasts are coded."""
        if not self._seats.everyone:
            for name, vector in self.seated.items():
                vector.copy_(self._seats.take(self.clients[name], self.replicas))
        if self._coded:
            now = self.shared(self.server)
            for name, vector in broadcast(self._coded, now, known_point(self.server)).sent.items():
                self.coded_sent[name].copy_(vector)

    def sent(self) -> State:
        """Return what the server sends as ``[replicas, 1, size]``, to be broadcast over the clients."""
        return {name: vector.unsqueeze(1) for name, vector in self.sent_to_all().items()}

    def sent_to_all(self) -> State:
        """Return what the server sends, as the clients will decode it, ``[replicas, size]``."""
        return self.coded_sent if self._coded else self.shared(self.server)

    def shared(self, server: State) -> State:
        """Return what a server in this state sends, before any coding."""
        if not self._per_client:
            return self.rule.broadcast(algorithms_part(server))
        own = {name: each for name, each in algorithms_part(server).items() if name not in self._per_client}
        return self.rule.broadcast(own)

    def importance(self) -> Tensor:
        """Return the factors on the clients' fields before any client is drawn, ``[replicas, clients]``."""
        importance = self.rule.importance(algorithms_part(self.server))
        assert importance is not None
        return importance

    def memory(self, sent: State) -> State:
        """Return what server and clients remember of a broadcast."""
        return remember(self._coded, sent) if self._coded else {}

    def local_step(self, z: Tensor, gradient: Tensor, scale: Tensor, part: slice) -> Tensor:
        """Take the algorithm's local step for a chunk of clients; ``gradient * scale`` is the field."""
        own, sent, c = self._own(part), self.sent(), self.local(part)
        if self._fuse and self._fused is None:
            self._fused = fused_step(self.rule, z, gradient, scale, sent, own, c)
            self._fuse = self._fused is not None
        if self._fused is not None:
            return self._fused(z, gradient, scale, sent, own, c)
        return self.rule.local_step(z, sent, own, gradient * scale, c)

    # Steps that are more than ``local_step`` --------------------------------------------------------------------------

    def begin(self, z: Tensor, part: slice) -> None:
        """Initialise the vectors that change with local steps, for a chunk of clients that start a round at z."""
        if self._changing == {}:
            return
        begun = self.rule.begin(z, self.sent(), self._own(part), self.local(part))
        for name, stored in self._stores(z).items():
            stored[:, part].copy_(begun[name].expand_as(stored[:, part]))

    def working(self, part: slice) -> State:
        """Return the state of a chunk of clients during the local steps of a round."""
        changing = {name: vector[:, part] for name, vector in (self._changing or {}).items()}
        return {**self._own(part), **changing}

    def look(self, z: Tensor, F: Tensor, part: slice) -> Tensor:
        """Return the second points at which a chunk of clients needs the field."""
        return self.rule.look(z, self.sent(), self.working(part), F, self.local(part))

    def step(self, z: Tensor, F: Tensor, G: Tensor, part: slice, active: Tensor | None) -> Tensor:
        """Take the algorithm's step for a chunk of clients; inactive clients keep their state."""
        stores = self._stores(z)
        before = self.working(part)
        z, after = self.rule.step(z, self.sent(), before, F, G, self.local(part))
        held = {id(vector) for vector in before.values()}
        moved = {name: after[name].clone() if id(after[name]) in held else after[name] for name in stores}
        for name, stored in stores.items():
            own = stored[:, part]
            own.copy_(moved[name] if active is None else torch.where(active.unsqueeze(-1), moved[name], own))
        return z

    def _own(self, part: slice) -> State:
        return {name: vector[:, part] for name, vector in algorithms_part(self.seated).items()}

    def _stores(self, z: Tensor) -> State:
        """Return buffers for the vectors that change with local steps, found by trying one on the first client."""
        if self._changing is None:
            first = slice(0, 1)
            own, sent, c, z = self._own(first), self.sent(), self.local(first), z[:, :1]
            _, after = self.rule.step(z, sent, self.rule.begin(z, sent, own, c), z, z, c)
            shape = (len(z), self._steps.shape[1])
            changed = {name: vector for name, vector in after.items() if vector is not own.get(name)}
            self._changing = {name: vector.new_zeros(*shape, vector.shape[-1]) for name, vector in changed.items()}
        return self._changing


def _copy(state: State) -> State:
    return {name: vector.clone() for name, vector in state.items()}


def _stack(by_replica: Sequence[Coefficients]) -> Coefficients:
    """Stack coefficients: ``[replicas, 1]`` if all are scalars, else ``[replicas, size]``."""
    stacked = Coefficients()
    for name in by_replica[0]:
        values = [coefficients[name] for coefficients in by_replica]
        size = max(value.numel() for value in values)
        stacked[name] = torch.stack([value.expand(size) for value in values]).contiguous()
    return stacked


def _same(before: Coefficients, now: Coefficients) -> bool:
    return all(before[name] is value or torch.equal(before[name], value) for name, value in now.items())
