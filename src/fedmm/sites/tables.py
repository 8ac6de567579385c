"""A site's table: read as the site's file says, described by sums, and encoded as all sites agreed.

The server learns what is wrong with a table by column names only; cells are named in the site's log alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmm.config.schema import Experiment
from fedmm.config.sites import RowsElsewhere
from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.files import atomic_write
from fedmm.data.columns import Column, Numbers, encode_columns, rescale, scales_of
from fedmm.data.labels import UNLABELLED, number_labels
from fedmm.data.readers.table_formats import MISSING, TableFormat
from fedmm.data.readers.tables import read_table, require_columns, texts
from fedmm.remote.packed import NAME, Packed
from fedmm.sites.column_sums import describe
from fedmm.sites.config import DataSection, SiteConfig

if TYPE_CHECKING:
    import pandas

DESCRIPTION, ENCODING = "description", "encoding"
"""The array that describes a table, and the key under which a message has the columns of all sites, as JSON."""
_ASKED = "described.json"


class TableError(FedmmError):
    """What is wrong with a site's table, worded to follow the site's name and fit to leave the site."""


class SiteTable(NamedTuple):
    """A table as read. source, target: row numbers. y, groups: int64, of the source rows; rows of one id form a group.

    groups is None if no column says whose a row is.
    """

    frame: pandas.DataFrame
    source: Tensor
    target: Tensor
    y: Tensor
    groups: Tensor | None = None


def describe_table(config: SiteConfig, experiment: Experiment, say: Say) -> Packed:
    """Answer what the agreed columns hold: sums and counts over all rows of the site."""
    data = require_tables(experiment)
    agreed, decimal, min_rows = data.agreed, config.data.decimal, config.policy.min_rows
    with _names_alone(say):
        _count_question(config, data)
        frame = read_site_table(config, data, say).frame
        strange = dict[str, int]()
        for name in agreed.categories:
            if name in frame.columns:
                known = {*agreed.categories[name], *MISSING}
                strange[name] = sum(text not in known for text in texts(frame[name]))
        numbers = _read_numbers(data, frame, agreed.numbers, decimal, say)
        say(_overview(data, frame, numbers, strange, min_rows))
        found = describe(agreed, numbers, strange, len(frame), min_rows)
    return Packed({DESCRIPTION: found}, {NAME: config.site.name}, {})


def encode_table(config: SiteConfig, experiment: Experiment, encoding: str, say: Say) -> dict[str, Any]:
    """Encode the site's rows by the columns that the server sends: ``source_x``, ``source_y`` and ``target_x``.

    With ``data.id`` also ``source_groups``.
    """
    data = require_tables(experiment)
    columns = _columns(data, encoding)
    with _names_alone(say):
        frame, source, target, y, groups = read_site_table(config, data, say)
        lacking = [column.name for column in columns if column.name not in frame.columns]
        _read_numbers(data, frame, [column.name for column in columns if not column.levels], config.data.decimal, say)
        frame = frame.assign(**dict.fromkeys(lacking))
        if data.scaling == "per_site":
            columns = rescale(columns, scales_of(frame, columns, "table", config.data.decimal))
        x = encode_columns(frame, columns, "table", config.data.decimal).numpy()
    found: dict[str, Any] = {}
    if len(source):
        found |= {"source_x": np.ascontiguousarray(x[source.numpy()]), "source_y": y.numpy()}
        found |= {} if groups is None else {"source_groups": groups.numpy()}
    if len(target):
        found |= {"target_x": np.ascontiguousarray(x[target.numpy()])}
    return found


def read_site_table(config: SiteConfig, data: RowsElsewhere, say: Say) -> SiteTable:
    """Read the site's table, with columns named as all sites agreed and only those that may be learnt from."""
    section = config.data
    own = {agreed: here for here, agreed in section.rename.items()}
    words = [own.get(name, name) for name in data.categories]
    path, label = config.path(section.path), section.label
    frame = read_table(
        path, TableFormat.of(section), [name for name in (label, section.id) if name], words, may_lack=label
    )
    for key, names in (("rename", section.rename), ("id", [section.id] if section.id else []), ("drop", section.drop)):
        require_columns(frame, names, path, f"which data.{key} names")
    ids = texts(frame[section.id]) if section.id else None
    frame = frame.drop(columns=list(section.drop))
    labels = texts(frame[label]) if section.domain != "target" and label in frame.columns else None
    frame = frame.rename(columns=section.rename)
    twice = sorted(frame.columns[frame.columns.duplicated()])
    require(not twice, f"data.rename gives {path} two columns {twice[:1]}; give each column its own name")
    frame = frame[[name for name in data.features if name in frame.columns and name in section.features]]
    if section.domain == "target":
        rows = torch.arange(len(frame))
        return SiteTable(frame, rows[:0], rows, rows[:0])
    if labels is None:
        raise TableError("has no label column of the name that its file gives")
    y = _labels(labels, section, data, say)
    source, target = (part.nonzero().squeeze(1) for part in (y != UNLABELLED, y == UNLABELLED))
    if section.domain == "source" and len(target):
        say(f"table: row {int(target[0]) + 1} has no label")
        raise TableError("has rows without labels, but data.domain = 'source'")
    return SiteTable(frame, source, target, y[source], None if ids is None else _groups(ids)[source])


def _groups(ids: list[str]) -> Tensor:
    """Return each row's group number, the first row with its id; a row without an id is its own group."""
    first = dict[str, int]()
    return torch.tensor([first.setdefault(name, row) if name else row for row, name in enumerate(ids)])


def _labels(written: list[str], section: DataSection, data: RowsElsewhere, say: Say) -> Tensor:
    named = [section.classes.get(text, f"\0{text}") if text and section.classes else text for text in written]
    y, strange = number_labels(named, data.classes)
    if strange:
        shown = ", ".join(repr(name.removeprefix("\0")) for name in strange[:5])
        say(f"table: labels that are not a class of the experiment's ({', '.join(data.classes)}): {shown}")
        raise TableError("has labels that are not a class of the experiment; map them with data.classes in its file")
    return y


def require_tables(experiment: Experiment) -> RowsElsewhere:
    """Return the experiment's section on tables; raise TableError if it has none."""
    data = experiment.data
    if not isinstance(data, RowsElsewhere) or not data.features:
        raise TableError("has a table, but the experiment names no columns of tables (data.features)")
    return data


def _read_numbers(
    data: RowsElsewhere, frame: pandas.DataFrame, names: list[str], decimal: str, say: Say
) -> dict[str, Numbers]:
    """Return the numeric columns; raise TableError, with column names alone, for text or columns it must not lack."""
    numbers, texts_in = dict[str, Numbers](), list[str]()
    for name in names:
        if name not in frame.columns:
            continue
        try:
            numbers[name] = data.agreed.column(name).values(frame[name], f"column {name!r}", decimal)
        except FedmmError as problem:
            say(f"table: {problem}")
            texts_in.append(name)
    _require_columns(data, frame, texts_in)
    return numbers


def _require_columns(data: RowsElsewhere, frame: pandas.DataFrame, texts_in: list[str]) -> None:
    lacking = [name for name in data.features if name not in frame.columns]
    problems = []
    if lacking and data.lacking == "refuse":
        problems.append(f"has no column {', '.join(map(repr, lacking))}")
    if texts_in:
        listed = ", ".join(map(repr, texts_in))
        problems.append(f"has text in {listed}, where the experiment has {_kinds(data, texts_in)}")
    if problems:
        raise TableError("; ".join(problems))


def _kinds(data: RowsElsewhere, names: list[str]) -> str:
    dates = [name for name in names if name in data.dates]
    return "dates" if len(dates) == len(names) else "numbers and dates" if dates else "numbers"


def _overview(
    data: RowsElsewhere, frame: pandas.DataFrame, numbers: dict[str, Numbers], strange: dict[str, int], min_rows: int
) -> str:
    """Describe for the site's own log what leaves the site and what does not."""
    lacking = [name for name in data.features if name not in frame.columns]
    odd = {name: count for name, count in strange.items() if count}
    gaps = {name: int(np.isnan(values).sum()) for name, values in numbers.items() if np.isnan(values).any()}
    few = len(frame) < min_rows
    said = [
        f"table: {len(frame)} rows, {len(frame.columns)} of {len(data.features)} columns",
        f"lacking {', '.join(lacking)}" if lacking else "",
        f"missing values {gaps}" if gaps else "",
        f"rows with words that are not agreed categories {odd}" if odd else "",
        "leaves no sums (data.scaling = 'fixed')" if not data.agreed.learns else "",
        f"leaves no sums: fewer rows than min_rows = {min_rows}" if few and data.agreed.learns else "",
        f"leaves counts and sums of {', '.join(numbers)}" if numbers and data.agreed.learns and not few else "",
    ]
    return "; ".join(part for part in said if part)


def _columns(data: RowsElsewhere, encoding: str) -> tuple[Column, ...]:
    """Return the columns that the server sent; raise FedmmError unless they are the agreed ones."""
    try:
        columns = tuple(Column(**{**table, "levels": tuple(table["levels"])}) for table in json.loads(encoding))
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise FedmmError("the server sent no valid encoding of columns") from problem
    for column in columns:
        right = column.name in data.features and column.levels == tuple(data.categories.get(column.name, ()))
        require(right, "the server sent a column, or categories, that the experiment does not have")
    require(
        len({column.name for column in columns}) == len(columns) > 0, "the server sent a column twice, or no columns"
    )
    return columns


def _count_question(config: SiteConfig, data: RowsElsewhere) -> None:
    """Raise TableError after too many different questions, since many of them would reveal single rows.

    Sums are always over all rows of the site, so that no two of them differ by a row.
    """
    ranges = data.ranges if data.scaling == "robust" else {}
    asked = [ranges, data.categories, data.dates]
    if not data.agreed.learns or not any(asked):
        return
    path, most = config.state / _ASKED, config.site.descriptions
    wanted = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    except (OSError, ValueError) as problem:
        raise FedmmError(f"{path} cannot be read; remove it to start again") from problem
    if wanted in known:
        return
    if len(known) >= most:
        raise TableError(f"has described its table for {most} sets of categories, dates and ranges, which is its limit")
    with atomic_write(path) as partial:
        partial.write_text(json.dumps([*known, wanted]), encoding="utf-8")


@contextmanager
def _names_alone(say: Say) -> Iterator[None]:
    """Report problems with a table here in full, and elsewhere by column names only."""
    try:
        yield
    except TableError as problem:
        say(f"table: this site {problem}")
        raise
    except FedmmError as problem:
        say(f"table: {problem}")
        raise TableError("has a table that cannot be read as its file says; the site's own log says why") from problem
