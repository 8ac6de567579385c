"""Encode agreed columns from sums that sites send instead of rows.

A site describes its table by an array with a row for each agreed column (:func:`describe`). The server checks these
arrays (:func:`read_description`) and merges them (:func:`merge_descriptions`) into the columns that
:func:`fedmm.data.columns.learn_columns` would find in all rows together:

    mean = sum of totals / n                                                 bit-identical if the sums are exact
    deviation = root of (sum of (squares_i + n_i (mean_i - mean)^2) / n)     the same up to rounding of the sums
    quartiles (``robust``)                                                   between the edges of an agreed range
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmm.core.errors import require
from fedmm.data.columns import (
    BINS,
    FIELDS,
    AgreedColumns,
    Column,
    Numbers,
    Scale,
    deviation_of,
    numeric_column,
    robust_scale,
    sums_of,
)

UNTOLD = -1
"""Stands for a count that is too small to be reported."""
_TOLD, _LACKS, _FEW = range(3)
_MOST_ROWS, _LARGEST = 2**40, 1e100
"""Limits that keep every sum over sites within float64."""


class Described(NamedTuple):
    """What a site reports of a column.

    lacks: its table has no such column. few: it has too few numbers for the site to report sums. missing: some row has
    no number. known, total, squares: the count of its numbers, their sum, and their sum of squared deviations from the
    mean. strange: roughly how many rows have a word that is not a category; UNTOLD for a few. below: how many numbers
    are below each edge of the range, or UNTOLD.
    """

    lacks: bool
    few: bool
    missing: bool
    known: int
    total: float
    squares: float
    strange: int
    below: Numbers


class Merged(NamedTuple):
    """How the columns of all sites become numbers. scales: by site, for ``per_site``. notes: how the tables differ."""

    columns: tuple[Column, ...]
    scales: dict[str, tuple[Scale, ...]]
    notes: tuple[str, ...]


def describe(
    agreed: AgreedColumns, numbers: Mapping[str, Numbers], strange: Mapping[str, int], rows: int, min_rows: int
) -> Numbers:
    """Describe a site's table as float64 ``[columns, fields]``; no sum or count is over fewer than ``min_rows`` rows.

    numbers: by column, NaN if missing. strange: by column, how many rows have a word that is not a category. The table
    lacks columns that are in neither.
    """
    sums = np.zeros(agreed.shape)
    for row, name in zip(sums, agreed.names, strict=True):
        row[0] = _TOLD if name in numbers or name in strange else _LACKS
        if not agreed.learns:
            continue
        if name in strange:
            row[5] = strange[name] // min_rows * min_rows or (UNTOLD if strange[name] else 0)
        elif row[0] == _LACKS:
            row[1] = name not in agreed.categories
        else:
            known = numbers[name][~np.isnan(numbers[name])]
            if rows >= min_rows:
                row[1] = len(known) < rows
            if len(known) < min_rows:
                row[0] = _FEW
                continue
            row[2], (row[3], row[4]) = len(known), sums_of(known)
            require(bool(np.isfinite(row).all()), f"column {name!r} holds numbers that are too large to be summed")
            if agreed.scaling == "robust":
                row[FIELDS:] = _counts_below(known, agreed.ranges[name], min_rows)
    return sums


def _counts_below(known: Numbers, ends: Sequence[float], min_rows: int) -> Numbers:
    """Count the numbers below each edge; report a count only if ``min_rows`` or more lie between it and the last."""
    counts: Numbers = np.searchsorted(np.sort(known), _edges(ends)).astype(np.float64)
    counts[0], counts[-1] = 0, len(known)  # numbers outside the range count as at its ends
    told = 0.0
    for place in range(1, BINS):
        if counts[place] - told >= min_rows and len(known) - counts[place] >= min_rows:
            told = counts[place]
        else:
            counts[place] = UNTOLD
    return counts


def _edges(ends: Sequence[float]) -> Numbers:
    low, high = ends
    return np.linspace(low, high, BINS + 1)


def read_description(agreed: AgreedColumns, given: NDArray[np.generic]) -> dict[str, Described]:
    """Return what a site reports of each column; raise ``ValueError`` with a reason if no table can be like that."""
    if given.shape != agreed.shape or given.dtype != np.float64:
        raise ValueError(
            f"the sums of its columns are {given.dtype} of shape {given.shape}, not float64 of {agreed.shape}"
        )
    if not bool(np.isfinite(given).all()):
        raise ValueError("the sums of its columns are not all finite")
    columns = {}
    for row, name in zip(given.tolist(), agreed.names, strict=True):
        flaw = _flaw(agreed, name, row)
        if flaw:
            raise ValueError(f"its report on column {name!r} is impossible: {flaw}")
        state, missing, known, total, squares, strange = row[:FIELDS]
        below = np.array(row[FIELDS:])
        columns[name] = Described(
            state == _LACKS, state == _FEW, bool(missing), int(known), total, squares, int(strange), below
        )
    return columns


def _flaw(agreed: AgreedColumns, name: str, row: list[float]) -> str:
    """Return why no table can have this description; empty if one can."""
    state, missing, known, total, squares, strange = row[:FIELDS]
    below = row[FIELDS:]
    if state not in (_TOLD, _LACKS, _FEW) or missing not in (0, 1):
        return f"its state is unknown ({state:g}, {missing:g})"
    if known != int(known) or not 0 <= known <= _MOST_ROWS:
        return f"it counts {known:g} numbers"
    if strange != int(strange) or not UNTOLD <= strange <= _MOST_ROWS:
        return f"it counts {strange:g} rows with words that are not agreed categories"
    if state != _TOLD or name in agreed.categories or not agreed.learns:
        if known or (strange and name not in agreed.categories):
            return "it has counts, although it reports none"
    elif strange:
        return "a numeric column has words that are not agreed categories"
    elif not known:
        return "it has no numbers, but does not report that"
    if not known:
        return "it has sums, but no numbers" if total or squares or any(below) else ""
    return _flaw_of_sums(known, total, squares, agreed.ranges.get(name)) or _flaw_of_counts(known, below)


def _flaw_of_sums(known: float, total: float, squares: float, ends: Sequence[float] | None) -> str:
    if abs(total) > known * _LARGEST or squares > known * _LARGEST**2:
        return f"its numbers are too large to be standardised (mean {total / known:g})"
    if squares < 0 or (known == 1 and squares):
        return f"{known:g} numbers have squared deviations of {squares:g}"
    if ends is not None:
        low, high = ends
        rounding = 1e-9 * (high - low)
        if not low - rounding <= total / known <= high + rounding:
            return f"the mean {total / known:g} is outside the agreed range, {low:g} to {high:g}"
    return ""


def _flaw_of_counts(known: float, below: list[float]) -> str:
    told = [count for count in below if count != UNTOLD]
    if below and (below[0] != 0 or below[-1] != known or told != sorted(told)):
        return "its counts do not grow from 0 to the number of rows"
    return "its counts are not whole" if any(count != int(count) for count in told) else ""


def merge_descriptions(agreed: AgreedColumns, described: Mapping[str, Mapping[str, Described]]) -> Merged:
    """Return the encoding of all sites' rows. Sums are added in the order of the sites' names."""
    sites = sorted(described)
    notes = list(_notes(agreed, {site: described[site] for site in sites}))
    if not agreed.learns:
        return Merged(agreed.fixed(), {}, tuple(notes))
    columns, dropped = [], []
    for name in agreed.names:
        if name in agreed.categories:
            columns.append(agreed.column(name))
            continue
        column = _merge_column(agreed, name, [described[site][name] for site in sites])
        if column is None:
            dropped.append(name)
        else:
            columns.append(column)
    require(bool(columns), "no column is left to learn from: every column is empty or constant")
    notes += [f"column {name!r} is left out: it is empty or constant" for name in dropped]
    scales = {}
    if agreed.scaling == "per_site":
        scales = {
            site: tuple(_read_own_scale(column, described[site][column.name]) for column in columns) for site in sites
        }
    return Merged(tuple(columns), scales, tuple(notes))


def _merge_column(agreed: AgreedColumns, name: str, descriptions: Sequence[Described]) -> Column | None:
    filled = [description for description in descriptions if description.known]
    count = sum(description.known for description in filled)
    if not count:
        return None
    what = f"column {name!r}"
    total = sum(description.total for description in filled)
    mean = total / count
    squares = sum(
        description.squares + description.known * (description.total / description.known - mean) ** 2
        for description in filled
    )
    deviation = deviation_of(total, squares, count, what)
    if deviation is not None and agreed.scaling == "none":
        mean, deviation = 0.0, 1.0
    elif deviation is not None and agreed.scaling == "robust":
        mean, deviation = robust_scale(*_quartiles(filled, agreed.ranges[name]), deviation)
    missing = any(description.missing for description in descriptions)
    return numeric_column(name, mean, deviation, missing=missing, date=agreed.dates.get(name, ""))


def _quartiles(filled: Sequence[Described], ends: Sequence[float]) -> tuple[float, float, float]:
    """Return the quartiles of all numbers, interpolating linearly between counts."""
    places = np.arange(BINS + 1)
    below = np.zeros(BINS + 1)
    for description in filled:
        reported = description.below >= 0
        below += np.interp(places, places[reported], description.below[reported])
    low, middle, high = (float(np.interp(share * below[-1], below, _edges(ends))) for share in (0.25, 0.5, 0.75))
    return low, middle, high


def _read_own_scale(column: Column, description: Described) -> Scale:
    """Return a site's own mean and deviation, like :func:`fedmm.data.columns.scales_of`."""
    if column.levels or not description.known:
        return column.mean, column.deviation
    deviation = deviation_of(description.total, description.squares, description.known, f"column {column.name!r}")
    return description.total / description.known, column.deviation if deviation is None else deviation


def _notes(agreed: AgreedColumns, described: Mapping[str, Mapping[str, Described]]) -> list[str]:
    """Describe how the sites' tables differ, one sentence for each site and kind of difference."""
    notes = []
    for site, columns in described.items():
        for words, which in (
            ("has no column", [name for name in agreed.names if columns[name].lacks]),
            ("has too few rows to give sums of", [name for name in agreed.names if columns[name].few]),
            ("has words that are not agreed categories in", [name for name in agreed.names if columns[name].strange]),
        ):
            if which:
                listed = ", ".join(_with_count(name, columns[name].strange) for name in which)
                notes.append(f"{site} {words} {listed}")
    return notes


def _with_count(name: str, strange: int) -> str:
    if not strange:
        return repr(name)
    return f"{name!r} (about {strange} rows)" if strange > 0 else f"{name!r} (a few rows)"
