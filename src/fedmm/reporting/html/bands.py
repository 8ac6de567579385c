"""A quantity over the rounds of a method: the mean of its seeds, and between which values they lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from fedmm.reporting.read import Run, Series


class Band(NamedTuple):
    """Over the rounds that all runs measured: mean, lowest and highest; tails: what single runs measured after."""

    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    runs: int
    tails: list[Series]

    @property
    def last(self) -> float:
        return self.mean[-1]


def band(measured: Sequence[Series], times: float = 1.0) -> Band | None:
    """The band of some runs' series, None where none of them measured anything."""
    tables = [dict(zip(*series, strict=True)) for series in measured if series.rounds]
    if not tables:
        return None
    shared = [t for t in tables[0] if all(t in table for table in tables)]
    if not shared:
        tables = [max(tables, key=len)]
        shared = list(tables[0])
    columns = [[times * table[t] for table in tables] for t in shared]
    after = [{t: times * value for t, value in table.items() if t >= shared[-1]} for table in tables]
    return Band(
        rounds=shared,
        mean=[fmean(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
        runs=len(tables),
        tails=[Series(list(tail), list(tail.values())) for tail in after if len(tail) > 1],
    )


def column_band(runs: Sequence[Run], column: str, times: float = 1.0) -> Band | None:
    """The band of a column of the history."""
    return band([run.series(column) for run in runs], times)


def cumulative(run: Run, column: str, times: float = 1.0) -> Series:
    """The sum of a column up to each round."""
    rounds, values = run.series(column)
    return Series(rounds, [times * total for total in accumulate(values)])


def thinned(length: int, most: int) -> list[int]:
    """Places 0 .. length - 1, or so many of them evenly spread, with the first and the last."""
    if length <= most:
        return list(range(length))
    return sorted({round(place * (length - 1) / (most - 1)) for place in range(most)})
