"""What a data set is here: rows of two domains, and which of them are kept for testing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.problem import View, WholeRows
from fedmm.data.columns import Column

OTHER_SITES = "(another)"
"""What sites that hold test rows and no training rows are called, together."""
_ROWS_AT_ONCE = 4096


class Labelled(NamedTuple):
    """Rows and their labels: x ``[rows, ...]``, y int64 ``[rows]``."""

    x: Tensor
    y: Tensor

    def __repr__(self) -> str:
        return f"Labelled({tuple(self.x.shape)}, {len(self.y)} labels)"


class ReadRows(NamedTuple):
    """Rows of a file or a folder.

    x: ``[rows, ...]``, stored as the training rows were. names: what each row is called: a picture's path, a row's
    number. y: int64 ``[rows]``, -1 for a row without label; None if no row has one. strange: labels that training
    did not know; their rows have -2 here.
    """

    x: Tensor
    names: tuple[str, ...]
    y: Tensor | None = None
    strange: tuple[str, ...] = ()

    def part(self, rows: slice) -> ReadRows:
        """Some of the rows."""
        return self._replace(x=self.x[rows], names=self.names[rows], y=None if self.y is None else self.y[rows])


@dataclass(frozen=True)
class RowStream:
    """Rows of a file, a folder or a data set: how many there are, and their parts in order.

    skipped: a sentence for each bad picture that was left out of the parts so far.
    """

    rows: int
    parts: Iterator[ReadRows]
    skipped: list[str] = field(default_factory=list)

    @classmethod
    def cut(cls, rows: ReadRows) -> RowStream:
        """Rows that are in memory, in parts of a size that a network can be given."""
        starts = range(0, len(rows.x), _ROWS_AT_ONCE)
        return cls(len(rows.x), (rows.part(slice(start, start + _ROWS_AT_ONCE)) for start in starts))


@dataclass(frozen=True)
class Input(ABC):
    """A way from a path to rows. class_names: in the order of their labels."""

    name: ClassVar[str]

    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        words = isinstance(self.class_names, tuple) and all(isinstance(name, str) for name in self.class_names)
        require(words, f"class_names must be a list of words, not {self.class_names!r:.60}")

    @property
    def learnt(self) -> bool:
        """Whether it holds numbers that come of the training rows."""
        return False

    @property
    def table_columns(self) -> tuple[Column, ...]:
        """How the columns of a table become the numbers of a row; none if rows are of no table."""
        return ()

    @property
    def headings(self) -> tuple[str, ...]:
        """What each number of a table's row is called."""
        return tuple(heading for column in self.table_columns for heading in column.headings)

    @property
    def per_site(self) -> bool:
        """Whether the rows of each site are scaled in a way of their own."""
        return False

    def written_as(self, *, separator: str = "", decimal: str = "", encoding: str = "", site: str = "") -> Input:
        """The way for tables that are written otherwise, or are of a site that they do not name."""
        raise FedmmError("--separator, --decimal, --encoding and --site are for models of tables")

    def fits(self, path: Path) -> bool:
        """Whether a path by its name can be read this way."""
        return True

    @abstractmethod
    def read(self, path: Path) -> ReadRows:
        """The rows of a file or folder; what cannot be read is refused in one sentence."""

    def stream(self, path: Path, *, skip_bad: bool = False) -> RowStream:
        """The same in parts; skip_bad: leave out files that cannot be read as pictures."""
        return RowStream.cut(self.read(path))


@dataclass(frozen=True)
class Sites:
    """Who holds which rows: int64 ``[rows]``, places in ``names``.

    source_test, target_test, source_validation: the same of these rows, -1 for a site without training rows; None where
    it is not known.
    """

    names: tuple[str, ...]
    source: Tensor
    target: Tensor
    source_test: Tensor | None = None
    target_test: Tensor | None = None
    source_validation: Tensor | None = None


@dataclass(frozen=True)
class DomainPair:
    """A labelled source domain and a target domain.

    The target's training labels are here because partitions by class and supervised bounds need them; no training on
    unlabelled target data ever sees them. Test rows are for measuring alone.

    target: its labels are -1 if they are not known. target_test: None if no label of the target is known.
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
    """Options of a data set as a frozen dataclass; ``load`` makes its rows, always the same for the same options.

    One with options of text says of each whether it names files (``paths``) or not (``words``), since a site lets
    nobody else name its files. One of many files may have a method ``preview(most)``: a context that gives a
    :class:`Preview` of at most so many.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def load(self) -> DomainPair: ...


class Preview(NamedTuple):
    """A data set of some of the files, and how many of how many they are; 0 of 0 if there are none."""

    data: DataSet
    files: int = 0
    of: int = 0
