"""What every engine takes and gives: the state of a federation, and one record a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.problem import Statistics

Norms = dict[str, float]
"""The lengths of what one client sends: of each vector of its upload, and of the change of its running statistics."""


class Refusal(NamedTuple):
    """An update that was not counted, and why, in words that follow the client's name."""

    client: str
    reason: str


@dataclass(frozen=True)
class FederatedState:
    """Everything a federation is after ``round`` finished rounds; nothing else is needed to go on.

    server: the algorithm's server state; ``server["z"]`` is the server's point z_0. Numbers of each client
        (``init_per_client``) are in order of the clients' names.
    clients: each client's own state, by client name (FedMM's dual lives there).
    statistics, client_statistics: running statistics of normalisation layers, shared and per client.
    totals: the sums of each client's updates, by client name, where the terms have the server keep them.
    counted: by client name, the last round (from 0) in which the server counted it, where they exchange messages.
    norms: by client name, the lengths of its last update that was counted, where they are bounded by what is usual.
    offender: where the run ended because the round after this one was not finite, the client that began it (empty: the
        mean of all); None else. finished: where it was ended early, on purpose.
    fallback: good states of earlier rounds, the oldest first, where a guard may go back to one.
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
        """Whether no round follows, however many others have run."""
        return self.finished or self.offender is not None

    @property
    def z(self) -> Tensor:
        """The server's point (omega, psi) as a flat vector."""
        return self.server["z"]

    @property
    def model(self) -> Tensor:
        """The point whose network predicts: the server's ``average`` if the algorithm keeps one, otherwise z."""
        return self.server.get("average", self.server["z"])


@dataclass(frozen=True)
class RoundRecord:
    """What one round measured.

    round: rounds finished, from 1.
    drift: mean over the round's clients of ||z_i - z_0||.
    consensus_gap: root mean square over the round's clients of ||z_i - mean z||, before duals are added.
    dual_norm: root mean square over all clients of ||dual_i||; 0 for an algorithm without duals.
    bytes_up, bytes_down: sent by all clients together, and to all of them.
    metrics: means over the round's clients that report them (for example ``loss``).
    by_client: ``drift`` of the round's clients and ``dual_norm`` of all, where it is known, by client name; nothing
        if updates carry noise.
    clients: whose updates were counted; refused: whose were not, and why. Without any the server stays where it is, and
        drift and gap are 0.
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
        """The state before the first round."""

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        """One round: state in, state out; ``state`` is left as it is."""
