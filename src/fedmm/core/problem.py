"""What an engine trains: clients that can evaluate their signed field, and a starting point.

An engine knows nothing of networks, data or losses. It asks a client to open a round, evaluates the field in each local
step, and closes the round. The rest of this module is what an engine needs to run many clients as one program: the rows
that a client holds (:class:`HeldRows`), how a network sees them (:class:`View`), and the networks themselves.
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
"""Running statistics of normalisation layers by name: a third group beside omega and psi, without gradient or dual."""


def holds_target(held: str) -> bool:
    """Return whether a client with these domains, such as ``source and target``, has target rows."""
    return "target" in held.split()


class LocalRound(Protocol):
    """One client's work in one round."""

    def field(self, z: Tensor, step: int) -> Tensor:
        """Return the signed field F_i(z) ``[size]`` on the batch of this local step.

        An algorithm that ``looks`` asks twice in a step, at two points. Both calls use the same batch and random draws;
        metrics and running statistics are those of the first.
        """

    def close(self) -> LocalReport:
        """Return the client's report after its last local step."""


@runtime_checkable
class ValuedRound(Protocol):
    """A round that also gives the value of f_i, for algorithms whose clients report it."""

    def first_value(self) -> Tensor:
        """Return f_i (0-dim, including its weight alpha_i) at the first point of local step 0, on that step's batch."""


class ClientProblem(Protocol):
    """One client's f_i."""

    @property
    def name(self) -> str:
        """The client's name, which determines its random draws and its place in every sum."""

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> LocalRound:
        """Begin round t (from 0) of a run of ``rounds`` rounds, with at most ``steps`` local steps."""


@dataclass(frozen=True)
class LocalReport:
    """A client's ``metrics``, to be averaged over the clients that report them, and its new running ``statistics``."""

    metrics: dict[str, float] = field(default_factory=dict)
    statistics: Statistics = field(default_factory=dict)


@dataclass(frozen=True)
class FederatedProblem:
    """min over omega, max over psi of the mean of the clients' f_i.

    share_statistics: whether the server averages the clients' running statistics (else each client keeps its own).
    listed: the names of all clients as given, including those with nothing to contribute; by default the clients'.
    groups: by client name, the domains it holds, such as ``source and target``; by default all are one group.
    seed: decides who takes part in a round and, if updates carry noise, the noise.
    federation: the number of clients in the federation, if ``clients`` are only some of them.
    constraints: the constraint set of each parameter group, at the server and, if ``held_locally``, after every local
        step.
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
        """The projection onto the constraints; None if there are none."""
        return Projection(self.layout, self.constraints) if self.constraints else None

    @property
    def local_projection(self) -> Projection | None:
        """The projection after every local step, if any."""
        return self.projection if self.held_locally else None

    def holds_target(self, names: Sequence[str]) -> Tensor:
        """Return which of these clients hold target rows, bool ``[clients]``."""
        return torch.tensor([holds_target(self.groups.get(name, "")) for name in names], device=self.layout.device)

    def __repr__(self) -> str:
        sizes = f"{self.layout.min_size} parameters in omega, {self.layout.size - self.layout.min_size} in psi"
        return f"FederatedProblem({len(self.clients)} clients, {sizes})"


@dataclass(frozen=True)
class HeldRows:
    """A client's rows of one domain, in a tensor that it may share with other clients.

    x: ``[all, ...]``; y: int64 ``[all]``, None for unlabelled rows; index: int64 ``[held]``, the client's own rows
    (None for all); key_parts: what its random draws are derived from; batch_rows: how many rows it adds to a batch.
    """

    x: Tensor
    y: Tensor | None
    index: Tensor | None
    key_parts: tuple[int | str, ...]
    batch_rows: int

    @property
    def count(self) -> int:
        """The number of rows held."""
        return len(self.x if self.index is None else self.index)


class StackableClient(Protocol):
    """A client whose f_i is an objective on a network and whose rows are in memory."""

    @property
    def name(self) -> str: ...

    @property
    def objective(self) -> Objective: ...

    @property
    def held(self) -> Sequence[HeldRows]:
        """Its rows, in the order in which they form a batch."""

    @property
    def weights(self) -> RowWeights: ...

    @property
    def field_scale(self) -> Tensor:
        """The factor that turns the loss gradient into the signed field, ``[size]``."""

    @property
    def alpha(self) -> float:
        """Its weight alpha_i, which ``field_scale`` includes."""

    def dropout_key(self, t: int, step: int) -> int:
        """Return the key of the dropout masks in a local step."""

    @property
    def view(self) -> View:
        """How the network sees its rows."""

    def view_key(self, t: int, step: int) -> int:
        """Return the key of the randomness in the view of a local step's batch."""


class NetworkStack(Protocol):
    """Many networks of one structure as a function of their parameters ``[G, size]``."""

    @property
    def has_dropout(self) -> bool: ...

    def constants(self, which: Tensor) -> Mapping[str, Tensor]:
        """Return the tensors other than parameters of the networks of the replicas ``which``, int64 ``[G]``."""

    def outputs(
        self, z: Tensor, x: Tensor, constants: Mapping[str, Tensor], dropout: Tensor | None, statistics: Statistics
    ) -> Outputs:
        """Return the outputs in training mode for batches x ``[G, rows, ...]``; updates ``statistics`` in place."""

    def evaluate(self, z: Tensor, x: Tensor, constants: Mapping[str, Tensor], statistics: Statistics) -> Outputs:
        """Return the outputs in evaluation mode."""


class View(Protocol):
    """A transform of stored rows, the same on every engine and device."""

    @property
    def random(self) -> bool:
        """Whether :meth:`train` depends on the key."""

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a row as the network sees it."""

    def train(self, x: Tensor, key: Tensor) -> Tensor:
        """Transform rows ``[..., rows, *stored]`` for training, with draws from their batches' keys int64 ``[...]``."""

    def evaluate(self, x: Tensor) -> Tensor:
        """Transform rows ``[..., rows, *stored]`` for evaluation and prediction, without randomness."""


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
