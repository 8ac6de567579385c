"""What travels between a server and its clients in a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.problem import Statistics

NEVER = -1
"""The round in which a client was last counted, before it was counted at all."""


@dataclass(frozen=True)
class Invitation:
    """From the server to a client: work in this round.

    round: t, from 0. sent: what the algorithm broadcasts, as the client will know it.
    codes: what travels of that where it is coded (:mod:`fedmm.core.compression`), if the client knows the last point.
    session: the server's, another one after each of its restarts: it may then send another point in the same round.
    counted: the round in which the server last counted this client; it goes on from its state after that round.
    statistics: running statistics, where the clients share them.
    totals: the sums of the client's updates so far, for a client that lost its state.
    importance: what the client's field is multiplied with in this round, where the server sets it.
    """

    round: int
    sent: State
    session: int = 0
    counted: int = NEVER
    statistics: Statistics = field(default_factory=dict)
    totals: State | None = None
    codes: State | None = None
    importance: float | None = None

    @property
    def travelling(self) -> State:
        """The vectors that travel to the client; a worker takes these as well as ``sent``."""
        return self.sent if self.codes is None else self.codes

    @property
    def size_in_bytes(self) -> int:
        """Bytes that it takes to send."""
        number = 0 if self.importance is None else self.sent["z"].element_size()
        return number + sum(map(size_in_bytes, (self.travelling, self.statistics, self.totals or {})))


@dataclass(frozen=True)
class Update:
    """From a client to the server.

    round, session: those of the invitation it answers. base: the round whose state the client went on from.
    vectors: the upload by name, in the form in which it travels; of an update that was accepted, ``[size]`` each.
    lost: it has not the state it should go on from, and uploads nothing.
    scalars: the numbers that the algorithm has its clients report.
    """

    round: int
    client: str
    vectors: State
    statistics: Statistics = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    session: int = 0
    base: int = NEVER
    lost: bool = False
    scalars: dict[str, float] = field(default_factory=dict)


def size_in_bytes(vectors: Mapping[str, Tensor]) -> int:
    """Bytes that named tensors take to send."""
    return sum(vector.numel() * vector.element_size() for vector in vectors.values())
