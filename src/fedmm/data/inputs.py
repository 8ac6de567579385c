"""How files like the training data become rows: stored with a finished run so that it can predict.

Each input is a frozen dataclass of plain values; :func:`input_table` stores it and :func:`build_input` rebuilds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require, unknown
from fedmm.core.validation import at_least, flag, one_of, positive, within
from fedmm.data.columns import Column, Scale, Standardiser, encode_columns, rescale, scales_of
from fedmm.data.domains import Input, ReadRows, RowStream
from fedmm.data.labels import UNLABELLED, number_labels, sort_names
from fedmm.data.readers.arrays import ALONE, ARRAYS, Layout, find_name, layout_of, read_arrays, rows_of, texts_of
from fedmm.data.readers.images import ClassFolders, found_in, read_squares, refuse_bad
from fedmm.data.readers.table_formats import TableFormat
from fedmm.data.readers.tables import read_table, require_columns, texts
from fedmm.data.sources import StoredFile
from fedmm.data.transforms import CropAndFlip

if TYPE_CHECKING:
    import pandas


_PICTURES_AT_ONCE = 256
_SAME_SCALE = 1e-6
"""Change of a mean or deviation that counts as rounding, as a share of the deviation."""
_OF_A_FILE = {"mean", "deviation", "scales", "at", *(key.name for key in fields(TableFormat))}
_FEWEST_OF_A_SITE = 20
"""The least number of rows from which an unknown site's mean and deviation are estimated."""


@dataclass(frozen=True)
class ImageInput(Input):
    """One picture, a folder of pictures, or a folder with one folder of pictures per class.

    Each picture becomes uint8 ``[3, size, size]``: resized so that its shorter side is ``stored_size`` pixels, cropped
    to the centre square, and then to the centre ``image_size`` pixels unless that is 0.
    """

    name: ClassVar[str] = "images"

    stored_size: int
    image_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("stored_size", self.stored_size, 1)
        at_least("image_size", self.image_size, 0)

    def fits(self, path: Path) -> bool:
        return path.suffix.lower() not in ARRAYS

    def read(self, path: Path) -> ReadRows:
        parts = list(self.stream(path).parts)
        known = [part.y for part in parts if part.y is not None]
        strange = sort_names(name for part in parts for name in part.strange)
        names = tuple(name for part in parts for name in part.names)
        return ReadRows(torch.cat([part.x for part in parts]), names, torch.cat(known) if known else None, strange)

    def stream(self, path: Path, *, skip_bad: bool = False) -> RowStream:
        folders = ClassFolders(path.parent, (StoredFile(path.name),)) if path.is_file() else found_in(path)
        skipped: list[str] = []
        return RowStream(len(folders.files), self._parts(folders, skip_bad, skipped), skipped)

    def _parts(self, folders: ClassFolders, skip_bad: bool, skipped: list[str]) -> Iterator[ReadRows]:
        for start in range(0, len(folders.files), _PICTURES_AT_ONCE):
            files = folders.files[start : start + _PICTURES_AT_ONCE]
            squares = read_squares(folders.folder, files, self.stored_size)
            skipped += squares.problems
            if not squares.read or (skipped and not skip_bad):  # read on, to report every bad file
                continue
            names = tuple(files[place].path for place in squares.read)
            y, strange = number_labels((Path(name).parent.name for name in names), self.class_names)
            yield ReadRows(self.shown(squares.x), names, y if folders.class_names else None, strange)
        if not skip_bad:
            refuse_bad(skipped, "; fix or remove these files, or skip them with --skip-bad")
        require(len(skipped) < len(folders.files), f"no picture in {folders.folder} can be read: {(*skipped, '')[0]}")

    def shown(self, x: Tensor) -> Tensor:
        """Crop squares ``[rows, 3, stored_size, stored_size]`` to their centre, unless ``image_size`` is 0."""
        return CropAndFlip(self.image_size).evaluate(x).contiguous() if self.image_size else x


@dataclass(frozen=True)
class ArrayInput(Input):
    """A .npy file with an array of rows, or a .npz archive with ``x`` and, if labels are known, ``y``.

    Archives of the data set ``arrays`` work too: ``target_test_x`` is read, or ``target_x`` without it.

    shape, bytes: of a stored row, channels first. layout: of pictures in the file. by_number: whether whole numbers in
    ``y`` are indices into class_names instead of names. mean, deviation: standardise each number of a row; empty leaves
    rows unscaled.
    """

    name: ClassVar[str] = "arrays"
    known: ClassVar[tuple[str, ...]] = (ALONE, "target_test_x", "target_x")

    shape: tuple[int, ...]
    bytes: bool
    layout: Layout = "auto"
    by_number: bool = False
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = len(self.mean) == len(self.deviation) and (not self.mean or self.shape == (len(self.mean),))
        require(fits, "mean and deviation must have one number for each number of a row")
        for value in self.mean:
            within("mean", value, -math.inf, math.inf)
        for value in self.deviation:
            positive("deviation", value)
        for size in self.shape:
            at_least("shape", size, 1)
        flag("bytes", self.bytes)
        flag("by_number", self.by_number)
        one_of("layout", self.layout, get_args(Layout))

    @property
    def learnt(self) -> bool:
        return bool(self.mean)

    def read(self, path: Path) -> ReadRows:
        arrays = read_arrays(path)
        key = find_name(arrays, self.known, path)
        x = self.rows(arrays[key], f"{path}: {key}")
        names = tuple(map(str, range(len(x))))
        given = arrays.get(key.removesuffix("x") + "y")
        if given is None:
            return ReadRows(x, names)
        y, strange = self.labels(given, len(x), f"{path}: {key.removesuffix('x')}y")
        return ReadRows(x, names, y, strange)

    def rows(self, x: Any, what: str) -> Tensor:
        """Convert an array to rows; raise FedmmError if they are unlike the training rows."""
        rows = rows_of(x, layout_of(x, self.layout, what), what)
        require(
            tuple(rows.shape[1:]) == self.shape,
            f"{what} has rows of shape {list(rows.shape[1:])}; the model was trained on {list(self.shape)}",
        )
        require(
            (rows.dtype == torch.uint8) == self.bytes,
            f"{what} holds {x.dtype} values; the model was trained on {'bytes (uint8)' if self.bytes else 'numbers'}",
        )
        return self.scaled(rows, what)

    def scaled(self, rows: Tensor, what: str) -> Tensor:
        """Standardise rows of numbers if the model needs it."""
        if not self.mean:
            return rows
        scale = Standardiser(*(torch.tensor(values, dtype=torch.float64) for values in (self.mean, self.deviation)))
        found = scale(rows)
        require(bool(torch.isfinite(found).all()), f"{what} holds a number that is far too large")
        return found

    def labels(self, y: Any, rows: int, what: str) -> tuple[Tensor, tuple[str, ...]]:
        """Return the class numbers of ``rows`` labels, and the labels that are no class."""
        require(
            y.shape == (rows,), f"{what} has shape {list(y.shape)}, but there are {rows} rows; give one label per row"
        )
        texts = texts_of(y, what)
        if self.by_number and y.dtype.kind != "U":
            return number_labels(
                ["" if text == "-1" else text for text in texts], [str(n) for n in range(len(self.class_names))]
            )
        return number_labels(
            ["" if text == "-1" and "-1" not in self.class_names else text for text in texts], self.class_names
        )


@dataclass(frozen=True)
class _TableColumns(Input):
    """The first fields of :class:`TableInput`; those of the format follow."""

    columns: tuple[Column, ...]
    label: str = ""
    id: str = ""


@dataclass(frozen=True)
class TableInput(TableFormat, _TableColumns):
    """A table with the columns of the training table, in the given format; other columns are ignored.

    columns: how each becomes numbers. label, id: columns with a row's class and its name, if the file has them.
    classes: the class of each label, if that is not the label itself.
    scales: by site, means and deviations that replace the columns' own, for training with ``scaling = "per_site"``.
    site: the column that names each row's site; at: the site of all rows in a file without that column.
    fixed: whether columns are scaled by agreed ranges instead of by the training rows.
    """

    name: ClassVar[str] = "table"

    classes: Mapping[str, str] = field(default_factory=dict)
    site: str = ""
    at: str = ""
    scales: Mapping[str, tuple[Scale, ...]] = field(default_factory=dict)
    fixed: bool = False

    def __post_init__(self) -> None:
        _TableColumns.__post_init__(self)
        TableFormat.__post_init__(self)
        given: tuple[Any, ...] = self.columns
        made = tuple(
            Column(**{**column, "levels": tuple(column.get("levels", ()))}) if isinstance(column, dict) else column
            for column in given
        )
        object.__setattr__(self, "columns", made)
        for option in ("label", "id", "site", "at"):
            require(isinstance(getattr(self, option), str), f"{option} must be text")
        labels = isinstance(self.classes, Mapping) and all(isinstance(class_, str) for class_ in self.classes.values())
        require(labels, f"classes must be a table of words, not {self.classes!r:.60}")
        object.__setattr__(self, "scales", _scales(self.scales, len(made)))
        flag("fixed", self.fixed)

    @property
    def table_columns(self) -> tuple[Column, ...]:
        return self.columns

    @property
    def learnt(self) -> bool:
        return not self.fixed

    @property
    def per_site(self) -> bool:
        return bool(self.scales)

    def written_as(self, *, separator: str = "", decimal: str = "", encoding: str = "", site: str = "") -> TableInput:
        require(not site or self.per_site, "--site is for models of tables with scaling = 'per_site'")
        given = {"separator": separator, "decimal": decimal, "encoding": encoding, "at": site}
        changed: dict[str, Any] = {option: value for option, value in given.items() if value}
        return replace(self, **changed)

    def read(self, path: Path) -> ReadRows:
        words = [column.name for column in self.columns if column.levels]
        texts_kept = [name for name in (self.label, self.id, self.site) if name]
        return self.rows(read_table(path, self, texts_kept, words, may_lack=self.label), path)

    def rows(self, frame: pandas.DataFrame, path: Path | str, sites: Sequence[str] | None = None) -> ReadRows:
        """Encode a table read from ``path``; sites: each row's site, if no column names it."""
        x = self._scaled(frame, path, sites) if self.scales else encode_columns(frame, self.columns, path, self.decimal)
        names = texts(frame[self.id]) if self.id in frame.columns else map(str, range(1, len(frame) + 1))
        if self.label not in frame.columns:
            return ReadRows(x, tuple(names))
        y, strange = self.labels(texts(frame[self.label]))
        known = bool(strange) or bool((y != UNLABELLED).any())
        return ReadRows(x, tuple(names), y if known else None, strange)

    def labels(self, written: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
        """Return the class numbers of labels, and the labels that are no class."""
        return number_labels([self.classes.get(label, label) for label in written], self.class_names)

    def _scaled(self, frame: pandas.DataFrame, path: Path | str, sites: Sequence[str] | None) -> Tensor:
        """Encode rows, each scaled by its site's statistics; a site unknown in training is scaled by its rows here."""
        require_columns(frame, (column.name for column in self.columns), path, "which the model was trained on")
        if sites is None and self.site in frame.columns:
            require(not self.at, f"column {self.site!r} of {path} names the site of each row; leave out --site")
            sites = texts(frame[self.site])
        if sites is None:
            require(
                bool(self.at),
                f"{path} does not say which site its rows belong to, and the model scales each site by its own mean; "
                f"use --site with one of: {', '.join(self.scales)} (or another with at least {_FEWEST_OF_A_SITE} rows)",
            )
            sites = [self.at] * len(frame)
        x = torch.empty(len(frame), sum(column.width for column in self.columns))
        for site in dict.fromkeys(sites):
            which = [row for row, name in enumerate(sites) if name == site]
            part = frame.iloc[which]
            scales = self.scales.get(site)
            if scales is None:
                require(
                    len(part) >= _FEWEST_OF_A_SITE,
                    f"{path} has {len(part)} rows of the site {site!r:.60}, which was not in training; scaling them by "
                    f"their own mean and deviation needs at least {_FEWEST_OF_A_SITE} rows",
                )
                scales = scales_of(part, self.columns, path, self.decimal)
            x[which] = encode_columns(part, rescale(self.columns, scales), path, self.decimal)
        return x


def _scales(given: object, columns: int) -> dict[str, tuple[Scale, ...]]:
    require(isinstance(given, Mapping), f"scales must be a table by site, not {given!r:.60}")
    assert isinstance(given, Mapping)
    found = {}
    for site, scales in given.items():
        pairs = isinstance(scales, list | tuple) and len(scales) == columns
        require(pairs and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in scales),
                f"scales must hold a mean and a deviation for each column of {site!r:.60}")  # fmt: skip
        for mean, deviation in scales:
            within("mean", mean, -math.inf, math.inf)
            positive("deviation", deviation)
        found[str(site)] = tuple((float(mean), float(deviation)) for mean, deviation in scales)
    return found


INPUTS: dict[str, type[Any]] = {kind.name: kind for kind in (ImageInput, ArrayInput, TableInput)}
"""The inputs that can be stored with a run."""


def input_table(given: Input) -> dict[str, Any]:
    """Return an input as plain values with its name."""
    return {"name": given.name, **asdict(given)}


def build_input(table: Mapping[str, Any]) -> Input:
    """Rebuild an input from the values of :func:`input_table`, possibly read back from JSON."""
    name = str(table.get("name"))
    if name not in INPUTS:
        raise unknown("input", name, INPUTS)
    values = {key: _tuples(value) for key, value in table.items() if key != "name"}
    try:
        made: Input = INPUTS[name](**values)
    except TypeError as problem:
        raise FedmmError(f"the input {name!r} is malformed: {problem}") from problem
    return made


def tell_apart(before: Input, now: Input) -> str:
    """Describe why two inputs read the same file as different rows; empty if they agree up to rounding."""
    old, new = _scale_by_name(before), _scale_by_name(now)
    gone = [name for name in old if name not in new]
    if gone:
        return f"{gone[0]} is no longer one of its numbers"
    if _unscaled(input_table(before)) != _unscaled(input_table(now)):
        return "its columns, their words or its classes have changed"
    for name, (mean, deviation) in old.items():
        mean_now, deviation_now = new[name]
        near = _SAME_SCALE * deviation
        if not (abs(mean_now - mean) <= near and abs(deviation_now - deviation) <= near):
            return f"{name} has mean {mean_now:.6g}, deviation {deviation_now:.6g}, not {mean:.6g} and {deviation:.6g}"
    return ""


def _scale_by_name(given: Input) -> dict[str, Scale]:
    """Return the mean and deviation of each number of a row."""
    if isinstance(given, ArrayInput):
        scales = zip(given.mean, given.deviation, strict=True)
        return {f"number {place} of a row": scale for place, scale in enumerate(scales, start=1)}
    named = {f"column {column.name!r}": (column.mean, column.deviation) for column in given.table_columns}
    if isinstance(given, TableInput):
        for site, scales_here in given.scales.items():
            columns = zip(given.columns, scales_here, strict=True)
            named |= {f"column {column.name!r} of {site!r}": scale for column, scale in columns}
    return named


def _unscaled(value: Any) -> Any:
    """Return an input's plain values without means, deviations and file format."""
    if isinstance(value, Mapping):
        return {key: _unscaled(one) for key, one in value.items() if key not in _OF_A_FILE}
    return [_unscaled(one) for one in value] if isinstance(value, list | tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
