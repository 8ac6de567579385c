"""What an engine trains: clients that can evaluate their signed field, and a start.

An engine knows nothing of networks, data or losses. It asks a client to open a round, evaluates the field local step
after local step, and closes the round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fedmm.core.layout import Layout

Statistics = dict[str, Tensor]
"""Running statistics of normalisation layers by name: a third group beside omega and psi, with no gradient or dual."""


class LocalRound(Protocol):
    """One client's work in one round."""

    def field(self, z: Tensor, step: int) -> Tensor:
        """The signed field F_i(z) ``[size]`` on the batch of this local step."""

    def close(self) -> LocalReport:
        """What the client reports after its last local step."""


class ClientProblem(Protocol):
    """One client's f_i."""

    @property
    def name(self) -> str:
        """The client's name: its random draws, and its place in every sum, follow from it."""

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> LocalRound:
        """Begin round t (from 0) of a run of ``rounds`` rounds, with ``steps`` local steps."""


@dataclass(frozen=True)
class LocalReport:
    """metrics: numbers to average over the clients that report them; statistics: the running statistics afterwards."""

    metrics: dict[str, float] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=dict)


@dataclass(frozen=True)
class FederatedProblem:
    """min over omega, max over psi of the mean of the clients' f_i.

    share_statistics: average the clients' running statistics at the server (else each client keeps its own).
    listed: the names of all clients as they were given, with those that have nothing to add; by default the clients'.
    groups: by client name, which clients hold the same domains, for robust aggregation; all are one by default.
    seed: decides who takes part in a round, and the noise in updates where they carry any.
    federation: how many clients the federation has, where these may be but some of them.
    """

    layout: Layout
    start: Tensor
    clients: Sequence[ClientProblem]
    statistics: Statistics = field(default_factory=dict)
    share_statistics: bool = True
    listed: Sequence[str] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    federation: int = 0

    def __repr__(self) -> str:
        sizes = f"{self.layout.min_size} parameters in omega, {self.layout.size - self.layout.min_size} in psi"
        return f"FederatedProblem({len(self.clients)} clients, {sizes})"
