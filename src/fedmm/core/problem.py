"""What an engine trains: clients that can evaluate their signed field, and a start.

An engine knows nothing of networks, data or losses. It asks a client to open a round, evaluates the field local step
after local step, and closes the round. What it must know to run many clients as one program comes after: the rows
that a client holds (:class:`HeldRows`), how they are shown to a network (:class:`View`), and the networks themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedmm.core.layout import Layout
from fedmm.core.objective import Objective, Outputs, RowWeights
from fedmm.core.projections import ConvexSet, Projection

Statistics = dict[str, Tensor]
"""Running statistics of normalisation layers by name: a third group beside omega and psi, with no gradient or dual."""


def holds_target(held: str) -> bool:
    """Whether a client that holds these domains, such as ``source and target``, has target rows."""
    return "target" in held.split()


class LocalRound(Protocol):
    """One client's work in one round."""

    def field(self, z: Tensor, step: int) -> Tensor:
        """The signed field F_i(z) ``[size]`` on the batch of this local step.

        A method that looks asks a second time in the same step, at another point: the batch and everything random in
        it are then the same, and what is reported, and running statistics, are those of the first time.
        """

    def close(self) -> LocalReport:
        """What the client reports after its last local step."""


@runtime_checkable
class ValuedRound(Protocol):
    """A round whose client also knows the value of its f_i, for algorithms that have clients report it."""

    def first_value(self) -> Tensor:
        """f_i (0-dim, with its weight alpha_i) where the field was first asked for in local step 0, on that batch."""


class ClientProblem(Protocol):
    """One client's f_i."""

    @property
    def name(self) -> str:
        """The client's name: its random draws, and its place in every sum, follow from it."""

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> LocalRound:
        """Begin round t (from 0) of a run of ``rounds`` rounds, with ``steps`` local steps, or at most so many."""


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
    groups: by client name, which domains it holds, such as ``source and target``; all are one group by default.
    seed: decides who takes part in a round, and the noise in updates where they carry any.
    federation: how many clients the federation has, where these may be but some of them.
    constraints: by group of parameters, the set that it is held in, at the server and, where ``held_locally``, after
        every local step.
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
    constraints: Mapping[str, ConvexSet] = field(default_factory=dict)
    held_locally: bool = True

    @cached_property
    def projection(self) -> Projection | None:
        """To the nearest point that the constraints allow; None if there are none."""
        return Projection(self.layout, self.constraints) if self.constraints else None

    @property
    def local_projection(self) -> Projection | None:
        """The projection after every local step."""
        return self.projection if self.held_locally else None

    def holds_target(self, names: Sequence[str]) -> Tensor:
        """Who of these clients holds target rows, bool ``[clients]``."""
        return torch.tensor([holds_target(self.groups.get(name, "")) for name in names], device=self.layout.device)

    def __repr__(self) -> str:
        sizes = f"{self.layout.min_size} parameters in omega, {self.layout.size - self.layout.min_size} in psi"
        return f"FederatedProblem({len(self.clients)} clients, {sizes})"


@dataclass(frozen=True)
class HeldRows:
    """What a client holds of one domain, in a tensor that it may share with others.

    x: ``[all, ...]``; y: int64 ``[all]``, None for unlabelled rows; index: int64 ``[held]``, which rows are its own
    (all where it is None); key_parts: its draws follow from them; batch_rows: how many rows of a batch it gives.
    """

    x: Tensor
    y: Tensor | None
    index: Tensor | None
    key_parts: tuple[int | str, ...]
    batch_rows: int

    @property
    def count(self) -> int:
        """How many rows are held."""
        return len(self.x if self.index is None else self.index)


class StackableClient(Protocol):
    """A client whose f_i is an objective on a network, with its rows in memory."""

    @property
    def name(self) -> str: ...

    @property
    def objective(self) -> Objective: ...

    @property
    def held(self) -> Sequence[HeldRows]:
        """Its rows, in the order in which they make up a batch."""

    @property
    def weights(self) -> RowWeights: ...

    @property
    def field_scale(self) -> Tensor:
        """What the loss gradient is multiplied with to be the signed field, ``[size]``."""

    @property
    def alpha(self) -> float:
        """Its weight alpha_i, which is in that too."""

    def dropout_key(self, t: int, step: int) -> int:
        """The key of the dropout masks in a local step."""

    @property
    def view(self) -> View:
        """How its rows are shown to the network."""

    def view_key(self, t: int, step: int) -> int:
        """The key of what is random in the view of a local step's batch."""


class NetworkStack(Protocol):
    """Many networks of one structure as one function of their parameters ``[G, size]``."""

    @property
    def has_dropout(self) -> bool: ...

    def constants(self, which: Tensor) -> Mapping[str, Tensor]:
        """What is no parameter of networks that belong to the replicas ``which``, int64 ``[G]``."""

    def outputs(
        self, z: Tensor, x: Tensor, constants: Mapping[str, Tensor], dropout: Tensor | None, statistics: Statistics
    ) -> Outputs:
        """In training, for batches x ``[G, rows, ...]``; updates ``statistics`` in place."""

    def evaluate(self, z: Tensor, x: Tensor, constants: Mapping[str, Tensor], statistics: Statistics) -> Outputs:
        """In evaluation mode."""


class View(Protocol):
    """A function of stored rows, the same on every engine and device."""

    @property
    def random(self) -> bool:
        """Whether the key matters in training."""

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a row as the network sees it."""

    def train(self, x: Tensor, key: Tensor) -> Tensor:
        """Rows ``[..., rows, *stored]`` in training, drawn from the keys int64 ``[...]`` of their batches."""

    def evaluate(self, x: Tensor) -> Tensor:
        """Rows ``[..., rows, *stored]`` for measuring and predicting; nothing is random."""


@dataclass(frozen=True)
class WholeRows:
    """Rows as they are stored."""

    name: ClassVar[str] = "whole_rows"

    @property
    def random(self) -> bool:
        return False

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        return stored

    def train(self, x: Tensor, key: Tensor) -> Tensor:
        return x

    def evaluate(self, x: Tensor) -> Tensor:
        return x
