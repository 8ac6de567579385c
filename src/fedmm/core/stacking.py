"""What an engine must know of clients to run many of them as one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedmm.core.objective import Objective, Outputs, RowWeights
from fedmm.core.problem import Statistics
from fedmm.core.transforms import View


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
