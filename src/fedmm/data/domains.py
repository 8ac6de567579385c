"""The interface of a data set: rows of a source and a target domain, and which of them are kept for testing."""

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
"""The common name of all sites that have test rows but no training rows."""
_ROWS_AT_ONCE = 4096


class Labelled(NamedTuple):
    """Rows and their labels: x ``[rows, ...]``, y int64 ``[rows]``."""

    x: Tensor
    y: Tensor

    def __repr__(self) -> str:
        return f"Labelled({tuple(self.x.shape)}, {len(self.y)} labels)"


class ReadRows(NamedTuple):
    """Rows read from a file or a folder.

    x: ``[rows, ...]``, stored like the training rows. names: of each row: a picture's path, a row number or an id.
    y: int64 ``[rows]``, -1 for a row without label; None if no row has one.
    strange: labels unknown in training; their rows have y = -2.
    """

    x: Tensor
    names: tuple[str, ...]
    y: Tensor | None = None
    strange: tuple[str, ...] = ()

    def part(self, rows: slice) -> ReadRows:
        """Return a slice of the rows."""
        return self._replace(x=self.x[rows], names=self.names[rows], y=None if self.y is None else self.y[rows])


@dataclass(frozen=True)
class RowStream:
    """Rows of a file, a folder or a data set, delivered in parts.

    rows: their total number. skipped: a sentence for each unreadable picture left out of the parts so far.
    """

    rows: int
    parts: Iterator[ReadRows]
    skipped: list[str] = field(default_factory=list)

    @classmethod
    def cut(cls, rows: ReadRows) -> RowStream:
        """Cut rows in memory into parts small enough for a network."""
        starts = range(0, len(rows.x), _ROWS_AT_ONCE)
        return cls(len(rows.x), (rows.part(slice(start, start + _ROWS_AT_ONCE)) for start in starts))


@dataclass(frozen=True)
class Input(ABC):
    """A way to read a file or folder as rows. class_names: in label order."""

    name: ClassVar[str]

    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        words = isinstance(self.class_names, tuple) and all(isinstance(name, str) for name in self.class_names)
        require(words, f"class_names must be a list of words, not {self.class_names!r:.60}")

    @property
    def learnt(self) -> bool:
        """Whether it holds statistics of the training rows."""
        return False

    @property
    def table_columns(self) -> tuple[Column, ...]:
        """How a table's columns become numbers; empty if rows do not come from a table."""
        return ()

    @property
    def headings(self) -> tuple[str, ...]:
        """The name of each number in a table's row."""
        return tuple(heading for column in self.table_columns for heading in column.headings)

    @property
    def per_site(self) -> bool:
        """Whether each site's rows are scaled by that site's own statistics."""
        return False

    def written_as(self, *, separator: str = "", decimal: str = "", encoding: str = "", site: str = "") -> Input:
        """Return the same input for tables in another file format, or from a site that they do not name."""
        raise FedmmError("--separator, --decimal, --encoding and --site are for models of tables")

    def fits(self, path: Path) -> bool:
        """Return whether the path's name suggests that it can be read this way."""
        return True

    @abstractmethod
    def read(self, path: Path) -> ReadRows:
        """Read the rows of a file or folder; raise FedmmError if that fails."""

    def stream(self, path: Path, *, skip_bad: bool = False) -> RowStream:
        """Read the same rows in parts; skip_bad: leave out files that cannot be read as pictures."""
        return RowStream.cut(self.read(path))


@dataclass(frozen=True)
class Sites:
    """Which site holds which training rows: int64 ``[rows]``, indices into ``names``.

    source_test, target_test, source_validation: the same for these rows, -1 for a site without training rows; None if
    unknown.
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

    The target's training labels are here because partitions by class and supervised bounds need them; training on
    unlabelled target data never sees them. Test rows are used for evaluation only.

    target: labels are -1 if unknown. target_test: None if no target label is known.
    source_validation: labelled source rows to choose hyperparameters by, never trained on; the rows of ``source_test``
    if the data set keeps no others.
    view: how rows are shown to the network, for example cropped.
    sites: who holds the training rows, if the data says so.
    input: how files like the data's own become rows; None if the data does not come from the user's files.
    notes: what the user should know about how the data was read, a sentence each.
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
    """A frozen dataclass of a data set's options; ``load`` returns the same rows whenever the options are the same.

    Options of text must be listed: in ``paths`` if they name files and in ``words`` if not, because a site lets nobody
    else name its files. A data set of many files may have a method ``preview(most)``: a context manager that yields a
    :class:`Preview` of about ``most`` of them.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def load(self) -> DomainPair: ...


class Preview(NamedTuple):
    """A data set of some of the files: ``files`` out of ``of``; both are 0 if it reads no files."""

    data: DataSet
    files: int = 0
    of: int = 0
