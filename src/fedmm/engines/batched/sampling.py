"""Drawing the rows of a round for all clients at once, on the device that holds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.problem import HeldRows, StackableClient
from fedmm.core.seeding import epoch_key, permutation


class RowPool:
    """All rows of all clients in one tensor; rows that clients or replicas share are stored once."""

    def __init__(self, held: Sequence[HeldRows], device: torch.device) -> None:
        shapes = {(rows.x.shape[1:], rows.x.dtype) for rows in held}
        require(len(shapes) == 1, "stacked clients must hold rows of the same shape and dtype")
        self._bases: dict[tuple[object, ...], int] = {}
        xs, ys, total = [], [], 0
        for rows in held:
            if self._identity(rows) not in self._bases:
                self._bases[self._identity(rows)] = total
                total += len(rows.x)
                xs.append(rows.x.to(device))
                ys.append(torch.zeros(len(rows.x), dtype=torch.int64) if rows.y is None else rows.y)
        self.x = xs[0] if len(xs) == 1 else torch.cat(xs)
        self.y = torch.cat([y.to(device) for y in ys])

    @staticmethod
    def _identity(held: HeldRows) -> tuple[object, ...]:
        tensors = (held.x,) if held.y is None else (held.x, held.y)
        return tuple((tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors)

    def numbers(self, held: HeldRows) -> Tensor:
        """Return the positions of a client's rows in the pool, int64 ``[held]``."""
        own = torch.arange(held.count) if held.index is None else held.index
        return own.to(self.x.device) + self._bases[self._identity(held)]


@dataclass
class _Group:
    """Clients that draw the same part of a batch from equally many rows, in equally many steps."""

    rows: int
    batch_rows: int
    steps: int
    first: int
    clients: list[int] = field(default_factory=list)
    keys: list[tuple[int | str, ...]] = field(default_factory=list)
    numbers: list[Tensor] = field(default_factory=list)


@dataclass
class _Orders:
    """The row order in one epoch for each member of a group, ``[members, rows]``, and whose orders are drawn so far."""

    rows: Tensor
    drawn: set[int] = field(default_factory=set)


class RoundSampler:
    """Draws the rows of every local step of a round, exactly as each client would draw them on its own.

    drawn: the largest number of steps in a round, and the batch size.
    """

    def __init__(self, clients: Sequence[StackableClient], steps: Sequence[int], pool: RowPool) -> None:
        self._device = pool.x.device
        self.drawn = (max(steps), sum(held.batch_rows for held in clients[0].held))
        self._count = len(clients)
        groups: dict[tuple[int, int, int, int], _Group] = {}
        for position, (client, count) in enumerate(zip(clients, steps, strict=True)):
            first = 0
            for held in client.held:
                key = (held.count, held.batch_rows, count, first)
                group = groups.setdefault(key, _Group(*key))
                group.clients.append(position)
                group.keys.append(held.key_parts)
                group.numbers.append(pool.numbers(held))
                first += held.batch_rows
            require(first == self.drawn[1], "stacked clients must have the same batch size")
        self._groups = list(groups.values())
        self._numbers = [torch.stack(group.numbers) for group in self._groups]
        self._clients = [torch.tensor(group.clients, device=self._device) for group in self._groups]
        self._everyone = [torch.arange(len(group.clients), device=self._device) for group in self._groups]
        self._places = [{client: place for place, client in enumerate(group.clients)} for group in self._groups]
        self._orders: dict[int, dict[int, _Orders]] = defaultdict(dict)

    def indices(self, t: int, longest: int | None = None, seated: Sequence[int] | None = None) -> Tensor:
        """Return round t's rows as positions in the pool, int64 ``[clients, steps, rows]``; 0 beyond its steps.

        longest: fill only this many steps (default: all), the rest is 0. seated: whose rows to draw (default: all).
        """
        clients = self._count if seated is None else len(seated)
        chosen = torch.zeros(clients, *self.drawn, dtype=torch.int64, device=self._device)
        for number, group in enumerate(self._groups):
            steps = group.steps if longest is None else min(group.steps, longest)
            first, count = t * group.steps * group.batch_rows, steps * group.batch_rows
            first_epoch, offset = divmod(first, group.rows)
            epochs = range(first_epoch, (first + count - 1) // group.rows + 1)
            if seated is None:
                where, members = self._clients[number], self._everyone[number]
                orders = [self._order(number, epoch, range(len(group.keys))) for epoch in epochs]
            else:
                places = self._places[number]
                found = [(seat, places[client]) for seat, client in enumerate(seated) if client in places]
                if not found:
                    continue
                where, members = torch.tensor(found, device=self._device).unbind(dim=1)
                orders = [self._order(number, epoch, [member for _, member in found])[members] for epoch in epochs]
            own = torch.cat(orders, dim=1)[:, offset : offset + count]
            self._forget(number, epochs[-1])
            rows = self._numbers[number][members.unsqueeze(1), own].view(-1, steps, group.batch_rows)
            chosen[where, :steps, group.first : group.first + group.batch_rows] = rows
        return chosen

    def _order(self, number: int, epoch: int, members: Sequence[int]) -> Tensor:
        """Return a group's row orders in one epoch, ``[group's members, rows]``, drawn at least for ``members``."""
        group, orders = self._groups[number], self._orders[number]
        if epoch not in orders:
            shape = (len(group.keys), group.rows)
            orders[epoch] = _Orders(torch.empty(shape, dtype=torch.int64, device=self._device))
        kept = orders[epoch]
        new = [member for member in members if member not in kept.drawn]
        if new:
            keys = torch.tensor([epoch_key(group.keys[place], epoch) for place in new], device=self._device)
            kept.rows[new] = permutation(keys.unsqueeze(1), group.rows, self._device)
            kept.drawn.update(new)
        return kept.rows

    def _forget(self, number: int, before: int) -> None:
        orders = self._orders[number]
        for epoch in [epoch for epoch in orders if epoch < before]:
            del orders[epoch]
