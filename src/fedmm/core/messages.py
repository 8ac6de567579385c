"""What travels between a server and its clients in a round."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.problem import Statistics

NEVER = -1
"""The round in which a client was last counted, before it was counted at all."""


@dataclass(frozen=True)
class Invitation:
    """From the server to a client: work in this round.

    round: t, from 0. sent: what the algorithm broadcasts. start: :func:`fingerprint` of it.
    counted: the round in which the server last counted this client; it goes on from its state after that round.
    statistics: running statistics, where the clients share them.
    totals: the sums of the client's updates so far, for a client that lost its state.
    """

    round: int
    sent: State
    start: int = 0
    counted: int = NEVER
    statistics: Statistics = field(default_factory=dict)
    totals: State | None = None


@dataclass(frozen=True)
class Update:
    """From a client to the server.

    round, start: those of the invitation it answers. base: the round whose state the client went on from.
    vectors: the upload ``[size]`` by name. lost: it has not the state it should go on from, and uploads nothing.
    """

    round: int
    client: str
    vectors: State
    statistics: Statistics = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    start: int = 0
    base: int = NEVER
    lost: bool = False


def fingerprint(sent: State) -> int:
    """A checksum of what was sent, by which an answer is known to be one to this.

    The round's number alone does not do: a server that begins a round anew after a crash may send another point in it.
    """
    value = 0
    for name in sorted(sent):
        plain = sent[name].detach().cpu().contiguous().view(torch.uint8).numpy()
        value = zlib.crc32(plain.data, zlib.crc32(name.encode(), value))
    return value


def size_in_bytes(vectors: Mapping[str, Tensor]) -> int:
    """What named tensors take on the wire."""
    return sum(vector.numel() * vector.element_size() for vector in vectors.values())
