"""A quantity over the rounds of one method: the mean of its seeds and their range, and the line that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from matplotlib.axes import Axes

from fedmm.reporting.read import Series
from fedmm.reporting.style import Stroke


class HasSeries(Protocol):
    """A run whose quantities can be had over its rounds."""

    def series(self, name: str) -> Series:
        """A quantity by its name."""


class Curve(NamedTuple):
    """The runs of one label: mean and range over the rounds that all of them measured, and each alone."""

    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    runs: list[Series]

    @property
    def end(self) -> tuple[int, float] | None:
        """The last round of all, with the mean over the runs that measured it."""
        if not self.runs:
            return None
        last = max(run.rounds[-1] for run in self.runs)
        return last, fmean(run.values[-1] for run in self.runs if run.rounds[-1] == last)

    @property
    def tails(self) -> list[Series]:
        """What single runs measured from the last shared round on."""
        last = self.rounds[-1] if self.rounds else 0
        tails = [[(t, value) for t, value in zip(*run, strict=True) if t >= last] for run in self.runs]
        return [Series([t for t, _ in tail], [value for _, value in tail]) for tail in tails if len(tail) > 1]


def mean_curve(measured: Sequence[Series], times: float = 1.0) -> Curve:
    """The curve of some runs' series, multiplied by a factor; a run that measured nothing has no part in it."""
    tables = [{t: times * value for t, value in zip(*series, strict=True)} for series in measured if series.rounds]
    shared = [t for t in tables[0] if all(t in table for table in tables)] if tables else []
    columns = [[table[t] for table in tables] for t in shared]
    return Curve(
        rounds=shared,
        mean=[fmean(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
        runs=[Series(list(table), list(table.values())) for table in tables],
    )


def column_curve(runs: Sequence[HasSeries], column: str, times: float = 1.0) -> Curve:
    """The curve of a column of the history over the runs of one label."""
    return mean_curve([run.series(column) for run in runs], times)


def draw_curve(
    axes: Axes, curve: Curve, stroke: Stroke, *, x: Sequence[float] | None = None, thin: float = 1.0
) -> None:
    """The mean in full, the range behind it, and thinly what single runs measured after the last shared round.

    x: other places of the points than their rounds, for which there are no tails. thin: a factor of all widths.
    """
    line: dict[str, Any] = {"color": stroke.colour, "solid_capstyle": "round", "zorder": stroke.rank}
    places: Sequence[float] = curve.rounds if x is None else x
    if len(curve.runs) > 1:
        axes.fill_between(places, curve.low, curve.high, color=stroke.colour, alpha=0.16, linewidth=0, zorder=2)
    marker = "o" if len(places) == 1 else None
    axes.plot(places, curve.mean, linestyle=stroke.dash, linewidth=thin * stroke.width, marker=marker, **line)
    for tail in curve.tails if x is None else ():
        axes.plot(*tail, linestyle=stroke.dash, linewidth=0.9 * thin, alpha=0.7, **line)
