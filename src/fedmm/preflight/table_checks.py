"""Find what is odd in a table: cells, columns and rows that probably do not mean what they seem to."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fedmm.data.labels import sort_names
from fedmm.data.readers.table_formats import MISSING, TEXT, TableFormat, open_text, read_cell
from fedmm.data.readers.tables import cell_kinds, is_dates, is_numeric, is_plain, texts
from fedmm.preflight.detect_format import LINES, date_formats, looks_like_data

if TYPE_CHECKING:
    import pandas

_SHOWN, _SITES_SHOWN = 8, 20
_VARIES = 10
"""Distinct numbers from which on a column counts as a measurement."""
_ENOUGH_ROWS = 20
_HARDLY = 0.05
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")
_TOTALS = {"total", "totals", "sum", "mean", "average", "summe", "gesamt", "mittelwert", "total:", "summe:"}


def list_some(names: Collection[str], most: int = _SHOWN) -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(list(names)[:most]) + more


def unfilled_columns(
    frame: pandas.DataFrame, sites: Sequence[str] | None, columns: Sequence[str], lacking: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Report columns that are empty in every row, and those that a site lacks or has hardly or never filled."""
    nowhere = [name for name in columns if not _count_known(frame[name])]
    if nowhere:
        yield f"{_are(nowhere, 'is', 'are')} empty in every row: {list_some(nowhere)}"
    if sites is None:
        return
    rows_of: dict[str, list[int]] = {}
    for row, site in enumerate(sites):
        rows_of.setdefault(site, []).append(row)
    said = []
    for site in sort_names(rows_of):
        rows = rows_of[site]
        gone = [name for name in lacking.get(site, ()) if name in columns and name not in nowhere]
        if gone:
            yield f"the file of {site} has no {_are(gone, 'column', 'columns', count=False)} {list_some(gone)}"
        part = frame.iloc[rows]
        known = {name: _count_known(part[name]) for name in columns if name not in nowhere and name not in gone}
        never = [name for name, count in known.items() if not count]
        hardly = [
            f"{name} ({count} of {len(rows)} rows)" for name, count in known.items() if 0 < count <= _HARDLY * len(rows)
        ]
        if never:
            said.append(f"{site} never filled {list_some(never)}")
        if hardly:
            said.append(f"{site} hardly filled {list_some(hardly)}")
    yield from said[:_SITES_SHOWN]
    if len(said) > _SITES_SHOWN:
        yield f"{len(said) - _SITES_SHOWN} more such gaps at the {len(rows_of)} sites are not listed"


def constant_at_a_site(
    frame: pandas.DataFrame, sites: Sequence[str] | None, columns: Sequence[str], decimal: str = "."
) -> Iterator[str]:
    """Report measurements that are constant at one site: the number often stands for a missing value."""
    if sites is None:
        return
    every = sort_names(sites)
    for name in columns:
        column = frame[name]
        if not is_numeric(column, decimal):
            continue
        values = [read_cell(text, decimal).value for text in texts(column)]
        known: dict[str, list[float]] = {site: [] for site in every}
        for site, value in zip(sites, values, strict=True):
            if not math.isnan(value):
                known[site].append(value)
        for site in every:
            here = known[site]
            if len(here) < _ENOUGH_ROWS or len(set(here)) > 1:
                continue
            elsewhere = [value for other in every if other != site for value in known[other]]
            if len(set(elsewhere)) < _VARIES:
                continue
            number = here[0]
            if 2 * elsewhere.count(number) > len(elsewhere):  # such as 0 in counts of something rare
                continue
            also = [f"{known[other].count(number)} of {sites.count(other)} of {other}" for other in every
                    if other != site and known[other].count(number)]  # fmt: skip
            more = f", and in {list_some(also)}" if also else ""
            advice = f"zero_missing = [{name!r}]" if number == 0 else f"missing = ['{number:g}']"
            yield (
                f"column {name!r} is {number:g} in every row of {site} that has a value ({len(here)}){more}; if that "
                f"means not measured, set data.{advice}"
            )


def differing_in_case(values: Collection[str]) -> list[tuple[str, ...]]:
    """Return groups of words that differ only in capitals or spaces."""
    groups: dict[str, set[str]] = {}
    for value in set(values) - set(MISSING):
        groups.setdefault(" ".join(value.casefold().split()), set()).add(value)
    return [tuple(sorted(group)) for _, group in sorted(groups.items()) if len(group) > 1]


def spelt_alike(frame: pandas.DataFrame, columns: Sequence[str], most: int, decimal: str = ".") -> Iterator[str]:
    """Report columns of at most ``most`` words in which some differ only in capitals or spaces."""
    for name in columns:
        if frame[name].dtype.kind in "biufMm" or is_numeric(frame[name], decimal):
            continue
        words = set(texts(frame[name]))
        groups = differing_in_case(words) if len(words) <= most else []
        if groups:
            ways = "; ".join(" and ".join(map(repr, group)) for group in groups[:_SHOWN])
            yield (
                f"column {name!r} holds words that differ only in capitals or spaces, which count as two: {ways}; "
                "write them alike in the file"
            )


def odd_cells(frame: pandas.DataFrame, columns: Sequence[str], decimal: str = ".") -> Iterator[str]:
    """Report cells of numeric columns that are not plain numbers, and how they are read."""
    for name in columns:
        column = frame[name]
        if is_dates(column) or not is_numeric(column, decimal):
            continue
        kinds = cell_kinds(column, decimal)
        if kinds["censored"]:
            cells = [text for text in texts(column) if read_cell(text, decimal).kind == "censored"]
            without = sum(math.isnan(read_cell(text, decimal).value) for text in cells)
            how = [f"{len(cells) - without} read as the limit itself"] if len(cells) > without else []
            how += [f"{without} without a number read as missing"] if without else []
            yield f"column {name!r} has {len(cells)} cells such as {cells[0]!r}: {', '.join(how)}"
        if kinds["percent"]:
            mixed = " though others have none" if kinds["number"] else ""
            yield f"column {name!r} has {kinds['percent']} cells with a percent sign{mixed}: read as the number itself"


def numbers_as_words(column: pandas.Series, decimal: str = ".") -> str:
    """Return why a column is read as words though it seems to hold numbers; empty if it does not."""
    if not is_plain(column) or is_numeric(column, decimal):
        return ""
    kinds = cell_kinds(column, decimal)
    words = sorted({text for text in texts(column) if read_cell(text, decimal).kind == "word"})
    marked = [word for word in words if _THOUSANDS.fullmatch(word)]
    if marked and len(marked) == len(words):
        decimals = ", or set data.decimal = ',' if it has decimals" if "," in marked[0] else ""
        return f"{marked[0]!r} may be a number of thousands or one with decimals; write it without the mark{decimals}"
    if kinds["number"] > kinds["word"] > 0:
        return (
            f"it holds numbers and also words such as {words[0][:40]!r}; list those that mean missing in data.missing"
        )
    return ""


def dates_as_words(frame: pandas.DataFrame, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the columns of dates, stored as text or as dates, with the formats that fit all their values."""
    for name in columns:
        column = frame[name]
        if is_dates(column):
            yield name, ["%Y-%m-%d"]
        elif column.dtype.kind not in "biufMm":
            forms = date_formats(texts(column))
            if forms:
                yield name, forms


def last_row_is_a_total(frame: pandas.DataFrame) -> str:
    """Return a message if the last row seems to sum up the others, otherwise an empty string."""
    cells = [texts(frame[name].iloc[-1:])[0] for name in frame.columns]
    word = next((text for text in cells if text.casefold() in _TOTALS), "")
    sums_up = word and 3 * cells.count("") >= len(cells)
    return f"the last row says {word!r} and seems to sum up the others; remove it from the file" if sums_up else ""


def odd_header(path: Path, format: TableFormat) -> Iterator[str]:
    """Report what is wrong with the header of a text file."""
    if not path.name.lower().endswith(TEXT) or not format.header:
        return
    try:
        with open_text(path, format.encoding) as file:
            rows = list(islice(csv.reader(file, delimiter=format.separator_of(path)), LINES))
    except (OSError, ValueError, csv.Error, EOFError):
        return
    cells = rows[0] if rows else []
    if cells and looks_like_data(rows, format.decimal):
        yield (
            f"the first line of {path} names the columns, but holds numbers: {list_some(cells)}; if it is data, set "
            "data.header = false"
        )
    names = [cell.strip("\ufeff") for cell in cells]
    for place, name in enumerate(names):
        if not name.strip() and any(cell.strip() for row in rows[1:] for cell in row[place : place + 1]):
            yield f"column {place + 1} of {path} has no heading, so it is left out; give it one to learn from it"
    for name in sorted({name for name in names if name and names.count(name) > 1}):
        yield f"{path} has {names.count(name)} columns called {name!r}; the later ones are {name + '.1'!r} and so on"


def _count_known(column: pandas.Series) -> int:
    return sum(text not in MISSING for text in texts(column))


def _are(names: Sequence[str], one: str, many: str, *, count: bool = True) -> str:
    word = one if len(names) == 1 else many
    return f"{len(names)} column{'' if len(names) == 1 else 's'} {word}" if count else word
