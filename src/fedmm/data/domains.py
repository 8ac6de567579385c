"""What a data set is here: rows of two domains, and which of them are kept for testing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor


class Labelled(NamedTuple):
    """Rows and their labels: x ``[rows, ...]``, y int64 ``[rows]``."""

    x: Tensor
    y: Tensor

    def __repr__(self) -> str:
        return f"Labelled({tuple(self.x.shape)}, {len(self.y)} labels)"


@dataclass(frozen=True)
class DomainPair:
    """A labelled source domain and a target domain.

    The target's training labels are here because partitions by class and supervised bounds need them; no training on
    unlabelled target data ever sees them. Test rows are for measuring alone.
    """

    source: Labelled
    target: Labelled
    source_test: Labelled
    target_test: Labelled
    class_names: Sequence[str]

    @property
    def classes(self) -> int:
        return len(self.class_names)


class DataSet(Protocol):
    """Options of a data set as a frozen dataclass; ``load`` makes its rows, always the same for the same options."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def load(self) -> DomainPair: ...
