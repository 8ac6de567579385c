"""The messages that a server and its clients exchange in a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.problem import Statistics

NEVER = -1
"""Stands for the round in which a client was last counted, if it has never been counted."""


@dataclass(frozen=True)
class Invitation:
    """The server's message that asks a client to take part in a round.

    round: t, from 0. sent: what the algorithm broadcasts, as the client will decode it.
    codes: the compressed form that is sent instead (:mod:`fedmm.core.compression`), if the client knows the last point.
    session: changes with each restart of the server, which may then send a different point in the same round.
    counted: the round in which the server last counted this client; it continues from its state after that round.
    statistics: running statistics, if the clients share them.
    totals: the sums of the client's updates so far, for a client that lost its state.
    importance: the factor on the client's field in this round, if the server sets one.
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
        """The vectors that are actually sent, coded or not; a worker accepts both forms."""
        return self.sent if self.codes is None else self.codes

    @property
    def size_in_bytes(self) -> int:
        """Size of the message in bytes."""
        number = 0 if self.importance is None else self.sent["z"].element_size()
        return number + sum(map(size_in_bytes, (self.travelling, self.statistics, self.totals or {})))


@dataclass(frozen=True)
class Update:
    """A client's answer to an invitation.

    round, session: those of the invitation. base: the round after which the client's starting state was kept.
    vectors: the upload by name, as sent (possibly coded); ``[size]`` each once the update is accepted.
    lost: the client no longer has the state it should continue from, and uploads nothing.
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
    """Return the total size of named tensors in bytes."""
    return sum(vector.numel() * vector.element_size() for vector in vectors.values())
