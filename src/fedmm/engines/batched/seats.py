"""Which clients a stack computes in a round: all of them, or those in a few seats that are refilled every round."""

from __future__ import annotations

import torch
from torch import Tensor


class Seats:
    """The seats of each replica, that is, the clients that are computed in a round.

    shape: ``(replicas, seats)``. everyone: whether each client has its own seat; seats and clients are then the same.
    of: the client in each seat in this round, int64 ``[replicas, seats]``; no client has two.
    """

    def __init__(self, replicas: int, clients: int, seats: int, device: torch.device) -> None:
        self.shape = (replicas, seats)
        self.everyone = seats == clients
        self.of = torch.arange(seats, device=device).repeat(replicas, 1)
        self._numbers = torch.arange(replicas, device=device).unsqueeze(1)

    def fill(self, working: Tensor) -> Tensor:
        """Seat the clients that work, and others in the remaining seats; return the client in each seat.

        working: bool ``[replicas, clients]``, on the CPU like the result.
        """
        first = working.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
        seated = first[:, : self.shape[1]].sort(dim=1).values
        self.of.copy_(seated)
        return seated

    def take(self, values: Tensor, replicas: slice = slice(None)) -> Tensor:
        """Return the seated clients' part of ``[replicas, clients, ...]``; the tensor itself if everyone is seated."""
        return values if self.everyone else values[self._places(replicas)]

    def put(self, values: Tensor, own: Tensor, replicas: slice = slice(None)) -> None:
        """Write the seated clients' values, ``[replicas, seats, ...]``, into the tensor of all clients."""
        if self.everyone:
            values.copy_(own)
        else:
            values[self._places(replicas)] = own

    def _places(self, replicas: slice) -> tuple[Tensor, Tensor]:
        of = self.of[replicas]
        return self._numbers[: len(of)], of
