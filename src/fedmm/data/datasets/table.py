"""Users' own tables: one file with columns that say which site or domain a row belongs to, or one file per site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import TableKeys
from fedmm.core.validation import at_least, flag, one_of
from fedmm.data.columns import Scaling, learn_columns, scales_of
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.inputs import TableInput
from fedmm.data.labels import UNLABELLED, number_labels, sort_names
from fedmm.data.readers.table_formats import TableFormat
from fedmm.data.readers.tables import name_files, read_table, read_tables, require_columns, texts
from fedmm.data.splitting import Split, build_pair, require_shares, split_rows, take_names

if TYPE_CHECKING:
    import pandas


_FEW_CLASSES = 20


class Opened(NamedTuple):
    """A table as read. sites: each row's site, None if unknown; where: its name in messages.

    lacking: columns that a site's own file does not have.
    """

    frame: pandas.DataFrame
    sites: list[str] | None
    where: str
    lacking: Mapping[str, tuple[str, ...]]


class HeldNames(NamedTuple):
    """A name for each row that is not trained on, such as its group; None if there are no such rows."""

    target_test: list[str] | None
    source_test: list[str] | None
    source_validation: list[str] | None


@dataclass(frozen=True)
class _Columns:
    """The roles of a table's columns: the first keys of :class:`Table`."""

    file: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    classes: Mapping[str, str] = field(default_factory=dict)
    site: str = ""
    target_sites: tuple[str, ...] = ()
    domain: str = ""
    target_test: str = ""
    drop: tuple[str, ...] = ()
    id: str = ""
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    dates: Mapping[str, str] = field(default_factory=dict)
    most_levels: int = 100
    scaling: Scaling = "standard"


@dataclass(frozen=True)
class Table(TableKeys, _Columns):
    """Rows of text (.csv, .tsv, .txt, .data), Excel or Parquet files as float32 ``[rows, numbers]``.

    Numeric columns are standardised; columns of words are one-hot encoded. The encoding is learnt from the training
    rows alone, from sums that clients could send.

    file: one table; files: instead, one table per site, by site name.
    label: the column of classes; an empty cell is a row without label. classes: the class of each label, if that is not
        the label itself. site: the column that says who holds a row.
    target_sites, domain: which rows are the target: those of these sites, or those with "target" instead of "source" in
        the column ``domain``; with neither, the rows without label. Labels of target rows are for testing only.
    labelled_only: every row has a label and there is no target, for objectives without adaptation.
    target_test: another table, with labels, to test on.
    drop: columns to ignore; id: a column that names the rows, or what several rows belong to: rows of one id are all
        trained on, or none.
    numeric, categorical: columns whose kind is not to be guessed. dates: the format of each column of dates.
    most_levels: the most words per column. scaling: of numeric columns.
    separator, decimal, encoding, header, columns, sheet, missing, zero_missing: how the files are written.
    held_out, target_held_out, seed: as in :class:`Arrays`.
    validation_share: the share of every source class kept for choosing hyperparameters; with 0, the held-out rows are
        used both for that and for testing.
    """

    name: ClassVar[str] = "table"
    summary: ClassVar[str] = "your own CSV, Excel or Parquet files: a label column, and a site or domain column"
    paths: ClassVar[tuple[str, ...]] = ("file", "files", "target_test")
    words: ClassVar[tuple[str, ...]] = (
        "label", "classes", "site", "target_sites", "domain", "drop", "id", "numeric", "categorical", "dates",
        "separator", "encoding", "columns", "sheet", "missing", "zero_missing",
    )  # fmt: skip

    held_out: float = 0.1
    target_held_out: float = 0.0
    seed: int = 0
    labelled_only: bool = False
    validation_share: float = 0.0

    def __post_init__(self) -> None:
        flag("labelled_only", self.labelled_only)
        require_shares(self.held_out, self.target_held_out, self.validation_share)
        at_least("most_levels", self.most_levels, 2)
        at_least("seed", self.seed, 0)
        one_of("scaling", self.scaling, ("standard", "robust", "per_site", "none"))
        _ = self.format  # raises if it is invalid
        require(not (self.columns and self.header), "columns is for files without a header; set header = false too")
        require(not (self.file and self.files), "file and files exclude each other; use one of them")
        require(not (self.files and self.site), "site is not needed with files, which name the sites; leave it out")
        require(not (self.target_sites and self.domain), "target_sites and domain exclude each other; use one of them")
        require(
            not (self.labelled_only and (self.target_sites or self.domain or self.target_test)),
            "labelled_only is for a table without a target; leave out target_sites, domain and target_test",
        )
        require(
            not self.target_sites or bool(self.site or self.files),
            "target_sites needs site, the column that names them",
        )
        require(
            self.scaling != "per_site" or bool(self.site or self.files),
            "scaling = 'per_site' needs files, or site, the column that names each row's site",
        )
        both = sorted(set(self.numeric) & set(self.categorical))
        require(not both, f"numeric and categorical both name the column {both[0] if both else ''!r}")

    @property
    def format(self) -> TableFormat:
        """The format of the files' cells."""
        return TableFormat.of(self)

    @property
    def roles(self) -> set[str]:
        """Columns that are not features."""
        return {self.label, self.site, self.domain, self.id, *self.drop}

    def load(self) -> DomainPair:
        return self._pair(*self._deal())

    def held_column(self, column: str) -> HeldNames:
        """Return a column's values for the rows that are not trained on, in order; it need not be a feature."""
        (frame, _, where, _), _, _, split = self._deal([column])
        require_columns(frame, [column], where, "which --group names")
        says = texts(frame[column])
        chosen_by = split.source_test if split.source_validation is None else split.source_validation
        return HeldNames(*(take_names(says, rows) for rows in (split.target_test, split.source_test, chosen_by)))

    def _deal(self, as_written: Sequence[str] = ()) -> tuple[Opened, tuple[str, ...], Tensor, Split]:
        """Return the table, its classes, each row's class, and the split; as_written: columns also read as text."""
        require(bool(self.file or self.files), "data.file must name a .csv, .csv.gz, .tsv, .xlsx or .parquet file")
        require(bool(self.label), "data.label must name the column of classes")
        opened = self.opened(as_written)
        frame, sites, where, _ = opened
        labels = self._labels(frame, where)
        target = self._target(opened, labels)
        source_rows, target_rows = (~target).nonzero().squeeze(1), target.nonzero().squeeze(1)
        require(len(source_rows) > 0, f"{where} has no row of the source: labelled rows to learn from")
        require(len(target_rows) > 0 or self.labelled_only, f"{where} has no row of the target{self._untold}")
        classes = self._classes(labels, source_rows, where)
        y, strange = number_labels(labels, classes)
        require(
            not strange,
            f"{where} has target rows of the class {strange[0] if strange else ''!r}, which no row of the source has; "
            "remove them, or empty their labels",
        )
        groups = _groups(texts(frame[self.id]), sites) if self.id else None
        split = split_rows(
            y[source_rows],
            y[target_rows],
            held_out=self.held_out,
            target_held_out=self.target_held_out,
            seed=self.seed,
            validation_share=self.validation_share,
            source_sites=take_names(sites, source_rows),
            source_groups=take_names(groups, source_rows),
            target_groups=take_names(groups, target_rows),
            tested_elsewhere=bool(self.target_test),
        )
        return opened, classes, y, _in_table(split, source_rows, target_rows)

    def opened(self, as_written: Sequence[str] = ()) -> Opened:
        """Read the table before anything is learnt from it; as_written: columns also read as text."""
        said = [column for column in (self.label, self.site, self.domain, self.id) if column]
        lacking: Mapping[str, tuple[str, ...]] = {}
        sites = None
        if self.files:
            files = {site: Path(path).expanduser() for site, path in self.files.items()}
            frame, sites, lacking = read_tables(files, self.format, [*said, *as_written], self.categorical, self.label)
            where = name_files(files)
        else:
            path = Path(self.file).expanduser()
            frame, where = read_table(path, self.format, [*said, *as_written], self.categorical), str(path)
        for option in ("label", "site", "domain", "id", "drop", "numeric", "categorical", "dates", "zero_missing"):
            given = getattr(self, option)
            columns = (given,) if isinstance(given, str) else given
            require_columns(frame, filter(None, columns), where, f"which data.{option} names")
        twice = sorted({column for column in said if said.count(column) > 1})
        require(not twice, f"the column {twice[0] if twice else ''!r} is named as two of label, site, domain and id")
        if sites is None and self.site:
            sites = texts(frame[self.site])
        if sites is not None:
            self._require_sites(sites, where)
        return Opened(frame, sites, where, lacking)

    def _pair(self, opened: Opened, classes: tuple[str, ...], y: Tensor, split: Split) -> DomainPair:
        frame, sites, where, _ = opened
        shown = frame[[column for column in frame.columns if column not in self.roles]]
        train = torch.cat([split.source, split.target]).sort().values
        columns = learn_columns(
            shown.iloc[train.numpy()],
            numeric=self.numeric,
            categorical=self.categorical,
            dates=self.dates,
            scaling=self.scaling,
            decimal=self.decimal,
            most_levels=self.most_levels,
            path=where,
        )
        scales = {}
        if self.scaling == "per_site":
            assert sites is not None  # __post_init__
            for site in sort_names(sites):
                rows = [row for row in train.tolist() if sites[row] == site]
                scales[site] = scales_of(shown.iloc[rows], columns, where, self.decimal)
        kind = TableInput(
            classes,
            columns,
            self.label,
            self.id,
            **asdict(self.format),
            classes=dict(self.classes),
            site=self.site if scales else "",
            scales=scales,
        )
        both = Labelled(kind.rows(frame, where, sites).x, y)
        tested = self._elsewhere(kind) if self.target_test else None
        return build_pair(both, both, split, classes, tested=tested, source_sites=sites, target_sites=sites, input=kind)

    @property
    def _untold(self) -> str:
        """End of an error on missing target rows, if only missing labels mark the target."""
        if self.target_sites or self.domain:
            return ""
        return (
            ": no row lacks a label, and neither data.target_sites nor data.domain says which rows are the target; "
            "without a target at all, set data.labelled_only = true"
        )

    def _labels(self, frame: pandas.DataFrame, where: str) -> list[str]:
        """Return each row's class, empty if unknown."""
        written = texts(frame[self.label])
        if not self.classes:
            return written
        strange = sort_names(label for label in written if label and label not in self.classes)
        require(
            not strange,
            f"{where} has the label {strange[0] if strange else ''!r:.60} in column {self.label!r}, which data.classes "
            "does not name; add it there",
        )
        return [self.classes[label] if label else "" for label in written]

    def _require_sites(self, sites: Sequence[str], where: str) -> None:
        empty = next((row for row, site in enumerate(sites, start=1) if not site), None)
        require(empty is None, f"{where} names no site in row {empty} of column {self.site!r}; every row needs one")
        for site in self.target_sites:
            if site not in sites:
                known = ", ".join(sort_names(sites))
                raise FedmmError(
                    f"{where} has no row of the site {site!r}, which data.target_sites names (sites: {known:.300})"
                )

    def _target(self, opened: Opened, labels: list[str]) -> Tensor:
        """Return which rows are the target, bool ``[rows]``; raise FedmmError for a source row without label."""
        frame, sites, where, _ = opened
        if self.labelled_only:
            target = [False] * len(labels)
        elif self.domain:
            words = [word.lower() for word in texts(frame[self.domain])]
            for row, word in enumerate(words, start=1):
                require(
                    word in ("source", "target"),
                    f"{where} says {word!r} in column {self.domain!r}, row {row}; it must say 'source' or 'target'",
                )
            target = [word == "target" for word in words]
        elif self.target_sites:
            assert sites is not None  # __post_init__
            target = [site in self.target_sites for site in sites]
        else:
            target = [not label for label in labels]
        for row, (label, elsewhere) in enumerate(zip(labels, target, strict=True)):
            if not label and not elsewhere:
                place = f"row {row + 1}"
                if self.files and sites is not None:
                    site = sites[row]
                    place = f"row {row + 1 - sites.index(site)} of {site}"
                raise FedmmError(
                    f"{where} has no label in {place}, which belongs to the source; give it one, or remove the row"
                )
        return torch.tensor(target)

    def _classes(self, labels: list[str], source: Tensor, where: str) -> tuple[str, ...]:
        written = {labels[row] for row in source.tolist()}
        classes = tuple(name for name in dict.fromkeys(self.classes.values()) if name in written) or sort_names(written)
        require(
            len(classes) >= 2,
            f"{where} has only one class, {classes[0]!r:.60}, among the labelled rows of the source; at least two are "
            "needed",
        )
        require(
            len(classes) <= max(_FEW_CLASSES, len(source) // 2),
            f"{where} has {len(classes)} different labels in {len(source)} rows of column {self.label!r}; it must hold "
            "classes, not measurements",
        )
        return classes

    def _elsewhere(self, kind: TableInput) -> Labelled:
        """Return the rows of the table to test on."""
        path = Path(self.target_test).expanduser()
        found = kind.read(path)
        require(found.y is not None, f"{path} has no labels in a column {self.label!r}, so there is nothing to test on")
        assert found.y is not None
        require(not found.strange, f"{path} has a class {found.strange[:1]}, which no row of the source has")
        require(
            bool((found.y != UNLABELLED).all()),
            f"{path} has rows without labels, which cannot be tested on; remove them",
        )
        return Labelled(found.x, found.y)


def _in_table(split: Split, source: Tensor, target: Tensor) -> Split:
    """Translate row numbers of the two domains to those of the table."""
    tested = None if split.target_test is None else target[split.target_test]
    chosen_by = None if split.source_validation is None else source[split.source_validation]
    return Split(source[split.source], source[split.source_test], target[split.target], tested, chosen_by)


def _groups(names: Sequence[str], sites: Sequence[str] | None) -> list[str]:
    """Return one group per id and site; a row without an id is its own group."""
    return [f"{sites[row] if sites else ''}\0{name or f'{chr(0)}{row}'}" for row, name in enumerate(names)]
