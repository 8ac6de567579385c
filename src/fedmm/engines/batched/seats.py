"""Who computes in a round: all clients of a stack, or as many seats as take part, filled anew in every round."""

from __future__ import annotations

import torch
from torch import Tensor


class Seats:
    """Seats of each replica's clients.

    shape: ``(replicas, seats)``. everyone: each client has a seat of its own, so that seats are clients. Else ``of``
    says who sits where in the round, int64 ``[replicas, seats]``; nobody has two seats.
    """

    def __init__(self, replicas: int, clients: int, seats: int, device: torch.device) -> None:
        self.shape = (replicas, seats)
        self.everyone = seats == clients
        self.of = torch.arange(seats, device=device).repeat(replicas, 1)
        self._numbers = torch.arange(replicas, device=device).unsqueeze(1)

    def fill(self, working: Tensor) -> Tensor:
        """Seat those who work, bool ``[replicas, clients]``, and others where seats are left; who sits where.

        Both are on the CPU.
        """
        first = working.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
        seated = first[:, : self.shape[1]].sort(dim=1).values
        self.of.copy_(seated)
        return seated

    def take(self, values: Tensor, replicas: slice = slice(None)) -> Tensor:
        """What the seated clients have of ``[replicas, clients, ...]``; the tensor itself where everyone is seated."""
        return values if self.everyone else values[self._places(replicas)]

    def put(self, values: Tensor, own: Tensor, replicas: slice = slice(None)) -> None:
        """Write what the seated clients have, ``[replicas, seats, ...]``, where all clients' values are."""
        if self.everyone:
            values.copy_(own)
        else:
            values[self._places(replicas)] = own

    def _places(self, replicas: slice) -> tuple[Tensor, Tensor]:
        of = self.of[replicas]
        return self._numbers[: len(of)], of
