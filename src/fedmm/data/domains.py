"""What a data set is here: rows of two domains, and which of them are kept for testing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from fedmm.core.problem import View, WholeRows


class Labelled(NamedTuple):
    """Rows and their labels: x ``[rows, ...]``, y int64 ``[rows]``."""

    x: Tensor
    y: Tensor

    def __repr__(self) -> str:
        return f"Labelled({tuple(self.x.shape)}, {len(self.y)} labels)"


class ReadRows(NamedTuple):
    """Rows of a file or a folder.

    x: ``[rows, ...]``, stored as the training rows were. names: what each row is called: a picture's path, a row's
    number. y: int64 ``[rows]``, -1 for a row without label; None where no row has one. strange: labels that training
    did not know; their rows have -2 here.
    """

    x: Tensor
    names: tuple[str, ...]
    y: Tensor | None = None
    strange: tuple[str, ...] = ()


class Input(Protocol):
    """A way from a path to rows."""

    name: ClassVar[str]

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order of their labels."""

    @property
    def learnt(self) -> bool:
        """Whether it holds numbers that come of the training rows."""

    def read(self, path: Path) -> ReadRows:
        """The rows of a file or folder; what cannot be read is refused in one sentence."""


@dataclass(frozen=True)
class Sites:
    """Who holds which rows: int64 ``[rows]``, places in ``names``.

    source_test, target_test: the same of test rows, -1 for a site without training rows; None where it is not known.
    """

    names: tuple[str, ...]
    source: Tensor
    target: Tensor
    source_test: Tensor | None = None
    target_test: Tensor | None = None


@dataclass(frozen=True)
class DomainPair:
    """A labelled source domain and a target domain.

    The target's training labels are here because partitions by class and supervised bounds need them; no training on
    unlabelled target data ever sees them. Test rows are for measuring alone.

    target: its labels are -1 where they are not known. target_test: None where no label of the target is known.
    source_validation: labelled source rows that are neither trained on nor tested; hyperparameters may be chosen by it.
    view: how rows are shown to the network, for example cropped.
    sites: who holds the training rows, where the data says so.
    input: how files like the data's own become rows; None for data that is not read from the user's files.
    notes: what the user should know of how the data was read, a sentence each.
    """

    source: Labelled
    target: Labelled
    source_test: Labelled
    target_test: Labelled | None
    class_names: Sequence[str]
    source_validation: Labelled | None = None
    view: View = field(default=WholeRows(), kw_only=True)
    sites: Sites | None = field(default=None, kw_only=True)
    input: Input | None = field(default=None, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def classes(self) -> int:
        return len(self.class_names)


class DataSet(Protocol):
    """Options of a data set as a frozen dataclass; ``load`` makes its rows, always the same for the same options."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def load(self) -> DomainPair: ...
