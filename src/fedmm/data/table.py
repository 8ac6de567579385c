"""Your own table: a CSV or Parquet file with a row for each example, and columns that say whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedmm.core.checks import at_least
from fedmm.core.errors import FedmmError, require
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.encoding import learnt
from fedmm.data.inputs import TableInput
from fedmm.data.labels import UNLABELLED, numbered, ordered
from fedmm.data.splitting import Split, require_shares, split_rows, split_sites
from fedmm.data.stored_tables import read_table, require_columns, texts

if TYPE_CHECKING:
    import pandas


_FEW_CLASSES = 20


@dataclass(frozen=True)
class Table:
    """Rows of a CSV (.csv, .csv.gz, .tsv) or Parquet file as float32 ``[rows, numbers]``.

    Columns of numbers are standardised, those of words become one number for each word. What that needs is learnt from
    the training rows alone, from sums that clients could send.

    label: the column of classes; an empty cell is a row without label. site: the column that says who holds a row.
    target_sites, domain: which rows are the target: those of these sites, or those of which the column ``domain`` says
        "target" and not "source"; with neither, the rows without label. Labels of target rows are for testing alone.
    target_test: another table, with labels, to test on.
    drop: columns that are not looked at; id: one that names the rows.
    numeric, categorical: columns whose kind is not to be guessed. most_levels: words of a column at most.
    separator: between the cells of a CSV.
    held_out, target_held_out, seed: as in :class:`Arrays`.
    """

    name: ClassVar[str] = "table"
    summary: ClassVar[str] = "your own CSV or Parquet file: a label column, and a site or domain column"
    paths: ClassVar[tuple[str, ...]] = ("file", "target_test")

    file: str = ""
    label: str = ""
    site: str = ""
    target_sites: tuple[str, ...] = ()
    domain: str = ""
    target_test: str = ""
    drop: tuple[str, ...] = ()
    id: str = ""
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    most_levels: int = 100
    separator: str = ","
    held_out: float = 0.1
    target_held_out: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_shares(self.held_out, self.target_held_out)
        at_least("most_levels", self.most_levels, 2)
        at_least("seed", self.seed, 0)
        require(len(self.separator) == 1, f"separator must be one letter, not {self.separator!r}")
        require(not (self.target_sites and self.domain), "target_sites and domain exclude each other; use one of them")
        require(not self.target_sites or bool(self.site), "target_sites needs site, the column that they are named in")
        both = sorted(set(self.numeric) & set(self.categorical))
        require(not both, f"numeric and categorical both name the column {both[0] if both else ''!r}")

    def load(self) -> DomainPair:
        require(bool(self.file), "data.file must name a .csv, .csv.gz, .tsv or .parquet file")
        require(bool(self.label), "data.label must name the column of classes")
        path = Path(self.file).expanduser()
        frame = self._read(path)
        labels = texts(frame[self.label])
        sites = self._sites(frame, path)
        target = self._target(frame, labels, sites, path)
        here, there = (~target).nonzero().squeeze(1), target.nonzero().squeeze(1)
        require(len(here) > 0, f"{path} has no row of the source: labelled rows to learn from")
        require(len(there) > 0, f"{path} has no row of the target{self._untold}")
        classes = self._classes(labels, here, path)
        y, strange = numbered(labels, classes)
        require(
            not strange,
            f"{path} has target rows of the class {strange[0] if strange else ''!r}, which no row of the source has; "
            "remove them, or empty their labels",
        )
        split = split_rows(
            y[here],
            y[there],
            held_out=self.held_out,
            target_held_out=self.target_held_out,
            seed=self.seed,
            source_sites=[sites[row] for row in here.tolist()] if sites else None,
            tested_elsewhere=bool(self.target_test),
        )
        return self._pair(frame, path, classes, y, sites, _in_table(split, here, there))

    def _pair(
        self,
        frame: pandas.DataFrame,
        path: Path,
        classes: tuple[str, ...],
        y: Tensor,
        sites: list[str] | None,
        split: Split,
    ) -> DomainPair:
        said = {self.label, self.site, self.domain, self.id, *self.drop}
        shown = frame[[column for column in frame.columns if column not in said]]
        columns = learnt(
            shown.iloc[torch.cat([split.source, split.target]).sort().values.numpy()],
            numeric=self.numeric,
            categorical=self.categorical,
            most_levels=self.most_levels,
            path=path,
        )
        kind = TableInput(classes, columns, self.label, self.id, self.separator)
        x = kind.rows(frame, path).x

        def part(rows: Tensor) -> Labelled:
            return Labelled(x[rows], y[rows])

        kept = part(split.source_test)
        tested = self._elsewhere(kind) if self.target_test else None
        return DomainPair(
            part(split.source),
            part(split.target),
            kept,
            part(split.target_test) if split.target_test is not None else tested,
            classes,
            kept,
            input=kind,
            sites=split_sites(sites, sites, split) if sites else None,
        )

    @property
    def _untold(self) -> str:
        """The end of a sentence on rows that are missing, where nothing but the labels says which are the target."""
        if self.target_sites or self.domain:
            return ""
        return ": none is without label, and neither data.target_sites nor data.domain says which they are"

    def _read(self, path: Path) -> pandas.DataFrame:
        said = [column for column in (self.label, self.site, self.domain, self.id) if column]
        frame = read_table(path, self.separator, said, self.categorical)
        for option in ("label", "site", "domain", "id", "drop", "numeric", "categorical"):
            given = getattr(self, option)
            columns = (given,) if isinstance(given, str) else given
            require_columns(frame, filter(None, columns), path, f"which data.{option} names")
        twice = sorted({column for column in said if said.count(column) > 1})
        require(not twice, f"the column {twice[0] if twice else ''!r} is named as two of label, site, domain and id")
        return frame

    def _sites(self, frame: pandas.DataFrame, path: Path) -> list[str] | None:
        if not self.site:
            return None
        sites = texts(frame[self.site])
        empty = next((row for row, site in enumerate(sites, start=1) if not site), None)
        require(
            empty is None, f"{path} does not say in column {self.site!r} whose row {empty} is; every row needs a site"
        )
        for site in self.target_sites:
            if site not in sites:
                known = ", ".join(ordered(sites))
                raise FedmmError(
                    f"{path} has no row of the site {site!r}, which data.target_sites names (sites: {known:.300})"
                )
        return sites

    def _target(self, frame: pandas.DataFrame, labels: list[str], sites: list[str] | None, path: Path) -> Tensor:
        """Which rows are the target, bool ``[rows]``; a row of the source without label is refused."""
        if self.domain:
            words = [word.lower() for word in texts(frame[self.domain])]
            for row, word in enumerate(words, start=1):
                require(
                    word in ("source", "target"),
                    f"{path} says {word!r} in column {self.domain!r}, row {row}; it must say 'source' or 'target'",
                )
            target = [word == "target" for word in words]
        elif self.target_sites:
            assert sites is not None  # __post_init__
            target = [site in self.target_sites for site in sites]
        else:
            target = [not label for label in labels]
        for row, (label, elsewhere) in enumerate(zip(labels, target, strict=True), start=1):
            require(
                bool(label) or elsewhere,
                f"{path} has no label in row {row}, which is of the source; give it one, or remove the row",
            )
        return torch.tensor(target)

    def _classes(self, labels: list[str], source: Tensor, path: Path) -> tuple[str, ...]:
        classes = ordered(labels[row] for row in source.tolist())
        require(
            len(classes) >= 2,
            f"{path} has one class alone, {classes[0]!r:.60}, among the labelled rows of the source; there must be two",
        )
        require(
            len(classes) <= max(_FEW_CLASSES, len(source) // 2),
            f"{path} has {len(classes)} different labels in {len(source)} rows of column {self.label!r}; it must hold "
            "classes, not measurements",
        )
        return classes

    def _elsewhere(self, kind: TableInput) -> Labelled:
        """The rows of the table to test on."""
        path = Path(self.target_test).expanduser()
        found = kind.read(path)
        require(found.y is not None, f"{path} has no labels in a column {self.label!r}, so there is nothing to test on")
        assert found.y is not None
        require(not found.strange, f"{path} has a class {found.strange[:1]}, which no row of the source has")
        require(
            bool((found.y != UNLABELLED).all()),
            f"{path} has rows without label, which cannot be tested on; remove them",
        )
        return Labelled(found.x, found.y)


def _in_table(split: Split, source: Tensor, target: Tensor) -> Split:
    """Row numbers of the table, from those of its two domains."""
    tested = None if split.target_test is None else target[split.target_test]
    return Split(source[split.source], source[split.source_test], target[split.target], tested)
