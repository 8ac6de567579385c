"""What the columns of a table are probably for: by their names and by what they hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmm.core.errors import FedmmError, require
from fedmm.data.stored_tables import is_numeric, read_table, texts

if TYPE_CHECKING:
    import pandas

_LABELS = (
    "label", "class", "y", "diagnosis", "outcome", "category", "species", "target", "type", "grade", "stage", "result",
    "disease", "readmitted", "churn", "response", "condition",
)  # fmt: skip
_SITES = (
    "site", "hospital", "clinic", "centre", "center", "institution", "institute", "client", "silo", "device", "scanner",
    "location", "country", "region", "branch", "lab", "laboratory", "station", "store", "facility", "provider",
)  # fmt: skip
_IDS = ("id", "uuid", "index", "patient", "subject", "row", "key", "record", "name")
_DOMAINS = {"source", "target"}
_MOST_CLASSES, _MOST_SITES, _MOST_LEVELS = 50, 200, 100
_MARKS = (",", ";", "\t", "|")
_SHOWN = 8


@dataclass(frozen=True)
class Columns:
    """label, site, domain, id: columns by what they are for, empty where there is none; drop: of no use as they are.

    sites: the names in the site column, all of them, and those without any label; unlabelled: rows without label.
    """

    separator: str
    label: str
    site: str
    domain: str
    id: str
    drop: tuple[str, ...]
    sites: tuple[str, ...]
    unlabelled_sites: tuple[str, ...]
    rows: int
    unlabelled: int
    smallest: int
    """Rows of the smallest site, or of the smaller domain."""


def columns_of(path: Path, label: str, site: str) -> Columns:
    """Look at a table; ``label`` and ``site`` are the user's word on it. What stays open is asked for."""
    separator = _separator(path)
    frame = read_table(path, separator, words=())
    every = list(frame.columns)
    for option, given in (("--label", label), ("--site", site)):
        require(not given or given in every, f"{path} has no column {given!r} for {option}; it has {_some(every)}")
    written = {name: texts(frame[name]) for name in every}
    domain = next((name for name in every if _says_domain(written[name])), "") if not site else ""
    label = label or _the_label(path, written, {site, domain})
    site = site or _the_site(path, written, {label, domain})
    own = _the_id(frame, written, {label, site, domain})
    used = {label, site, domain, own}
    drop = tuple(name for name in every if name not in used and _of_no_use(frame[name], written[name]))
    labels = written[label]
    sites = written[site] if site else []
    names = tuple(sorted(set(sites) - {""}))
    empty = tuple(name for name in names if not any(a for a, b in zip(labels, sites, strict=True) if b == name))
    unlabelled = sum(not each for each in labels)
    sizes = [sites.count(name) for name in names] or [unlabelled or len(labels), len(labels) - unlabelled]
    return Columns(separator, label, site, domain, own, drop, names, empty, len(labels), unlabelled, max(1, min(sizes)))


def _separator(path: Path) -> str:
    """Between the cells of a CSV: the mark that its first line has most of."""
    name = path.name.lower()
    if not name.endswith(".csv"):
        return ","
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline(1_000_000)
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror}") from problem
    return max(_MARKS, key=first.count)


def _says_domain(values: Sequence[str]) -> bool:
    return {value.lower() for value in values} == _DOMAINS


def _the_label(path: Path, written: dict[str, list[str]], others: set[str]) -> str:
    """The column of classes: the only one with such a name or, without any, the only one that holds a few words."""
    able = [name for name, values in written.items() if name not in others and _few(values, 2, _MOST_CLASSES)]
    called = [name for name in able if _is_called(name, _LABELS)]
    partly = [name for name in called or able if "" in written[name]]
    for found in (partly, called, able):
        if len(found) == 1:
            return found[0]
    able = called or able
    require(
        bool(able), f"{path} has no column that could hold classes (2 to {_MOST_CLASSES} different values); --label"
    )
    counted = [f"{name} ({len(set(written[name]) - {''})} values)" for name in able]
    raise FedmmError(f"which column of {path} holds the classes? say --label and one of: {_some(counted)}")


def _the_site(path: Path, written: dict[str, list[str]], others: set[str]) -> str:
    """The column that says who holds a row: the only one with such a name; none where no column has one."""
    named = [
        name
        for name, values in written.items()
        if name not in others and _is_called(name, _SITES) and "" not in values and _few(values, 2, _MOST_SITES)
    ]
    if len(named) > 1:
        counted = [f"{name} ({len(set(written[name]))} values)" for name in named]
        raise FedmmError(f"which column of {path} says who holds a row? say --site and one of: {_some(counted)}")
    return named[0] if named else ""


def _the_id(frame: pandas.DataFrame, written: dict[str, list[str]], others: set[str]) -> str:
    """The first column that names every row, by what it holds and what it is called."""
    for name, values in written.items():
        if name in others or len(set(values)) < len(values) or "" in values:
            continue
        if _is_called(name, _IDS) or frame[name].dtype.kind in "iu" or not is_numeric(frame[name]):
            return name
    return ""


def _of_no_use(column: pandas.Series, values: Sequence[str]) -> bool:
    """Dates, and words that are too many to be categories."""
    if column.dtype.kind in "Mm":
        return True
    return not is_numeric(column) and len(set(values)) > _MOST_LEVELS


def _few(values: Sequence[str], low: int, high: int) -> bool:
    different = set(values) - {""}
    return low <= len(different) <= min(high, max(low, len(values) // 3))


def _is_called(name: str, words: Sequence[str]) -> bool:
    """Whether a column's name is one of the words, or begins or ends with one: ``site_id``, ``hospitalName``."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    parts = [part for part in re.split(r"[^A-Za-z]+", apart.lower()) if part]
    return bool(parts) and (parts[0] in words or parts[-1] in words)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
