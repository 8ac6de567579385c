"""What all engines share: the state of a federation, one record per round, and the interface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.problem import Statistics

Norms = dict[str, float]
"""The norms of what one client sends: of each vector of its upload, and of the change of its running statistics."""


class Refusal(NamedTuple):
    """An update that was not counted, and the reason, in words that follow the client's name."""

    client: str
    reason: str


@dataclass(frozen=True)
class FederatedState:
    """The complete state of a federation after ``round`` finished rounds; a run can be resumed from it alone.

    server: the algorithm's server state; ``server["z"]`` is the server's point z_0. Numbers of each client
        (``init_per_client``) are ordered by client name.
    clients: each client's own state, by client name (including FedMM's dual).
    statistics, client_statistics: running statistics of normalisation layers, shared and per client.
    totals: the sum of each client's updates, by client name, if the terms have the server keep them.
    counted: by client name, the last round (from 0) in which it was counted, if clients and server exchange messages.
    norms: by client name, the norms of its last update that was counted, if unusual norms are refused.
    offender: if the run ended on a non-finite next round, the client where this began (empty: the mean of all); else
        None. finished: whether the run was ended early, on purpose.
    fallback: good states of earlier rounds, the oldest first, if a guard may go back to one.
    """

    round: int
    server: State
    clients: dict[str, State]
    statistics: Statistics = field(default_factory=dict)
    client_statistics: dict[str, Statistics] = field(default_factory=dict)
    totals: dict[str, State] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    norms: dict[str, Norms] = field(default_factory=dict)
    offender: str | None = None
    finished: bool = False
    fallback: tuple[FederatedState, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether this run has no further rounds, even if others of its stack have."""
        return self.finished or self.offender is not None

    @property
    def z(self) -> Tensor:
        """The server's point (omega, psi) as a flat vector."""
        return self.server["z"]

    @property
    def model(self) -> Tensor:
        """The point used for prediction: the server's ``average`` if the algorithm keeps one, otherwise z."""
        return self.server.get("average", self.server["z"])


@dataclass(frozen=True)
class RoundRecord:
    """What was measured in one round.

    round: number of finished rounds, from 1.
    drift: mean over the round's clients of ||z_i - z_0||.
    consensus_gap: root mean square over the round's clients of ||z_i - mean z||, before duals are added.
    dual_norm: root mean square over all clients of ||dual_i||; 0 for an algorithm without duals.
    bytes_up, bytes_down: bytes sent by all clients together, and to all of them.
    metrics: means over the round's clients that report them (for example ``loss``).
    by_client: by client name, ``drift`` of the round's clients and ``dual_norm`` of all, if known; empty if updates
        carry noise.
    clients: how many clients were counted; refused: whose updates were not, and why. If none was counted the server
        does not move, and drift and gap are 0.
    """

    round: int
    drift: float
    consensus_gap: float
    dual_norm: float
    bytes_up: int
    bytes_down: int
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    clients: int = 0
    refused: tuple[Refusal, ...] = ()
    by_client: dict[str, dict[str, float]] = field(default_factory=dict)


class Engine(Protocol):
    """Decides where a round runs, never what it computes."""

    def start(self) -> FederatedState:
        """Return the state before the first round."""

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        """Run one round and return the new state and its record; ``state`` is not modified."""
