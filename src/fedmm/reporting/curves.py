"""Target accuracy over the rounds: one line a label, with its name and final accuracy at the line's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedmm.reporting.read import Comparison, Series
from fedmm.reporting.style import (
    AXIS,
    FAINT,
    SMALL,
    TEXT,
    WIDTH,
    Stroke,
    limit_percent,
    limit_rounds,
    lines_height,
    place,
    quiet,
    spread_apart,
    text_width,
    wrapped,
    write,
)
from fedmm.reporting.tables import Row, comparison_rows, percent

_LEFT, _LEAST_HEIGHT = 0.62, 4.2
_LEADER, _SPACE = 0.42, 0.1
"""Inches from the panel to the number at a line's end, and between that and the name."""
_NAME_COLUMNS = 24


class Measured(Protocol):
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


def accuracy_curve(runs: Sequence[Measured]) -> Curve:
    """The target accuracies of one label, in percent."""
    return curve(runs, "target_accuracy", 100.0)


def curve(runs: Sequence[Measured], column: str, times: float = 1.0) -> Curve:
    """A column of the history over the runs of one label; a run that never measured it has no part in it."""
    measured = [series for run in runs if (series := run.series(column)).rounds]
    tables = [{t: times * value for t, value in zip(*series, strict=True)} for series in measured]
    shared = [t for t in tables[0] if all(t in table for table in tables)] if tables else []
    columns = [[table[t] for table in tables] for t in shared]
    return Curve(
        rounds=shared,
        mean=[fmean(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
        runs=[Series(list(table), list(table.values())) for table in tables],
    )


class CurvePanel:
    """The panel of a comparison's curves; its height is known before it is drawn.

    column: of the history; target accuracy is drawn in percent, and others as they are.
    """

    def __init__(self, comparison: Comparison, strokes: Mapping[str, Stroke], column: str = "target_accuracy") -> None:
        self._column = column
        times = 100.0 if column == "target_accuracy" else 1.0
        self._curves = {label: curve(runs, column, times) for label, runs in comparison.groups().items()}
        self._rows = comparison_rows(comparison)
        self._strokes = strokes
        self._names = [_name(row) for row in self._rows]
        self._heights = [lines_height(name, TEXT) + 0.05 for name in self._names]
        self._inner = max(_LEAST_HEIGHT, sum(self._heights))
        self.height = self._inner + AXIS

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the panel with its top edge at a distance from the figure's, in inches."""
        number = max(text_width(figure, self._final(row), weight="bold") for row in self._rows) + _SPACE
        name = max(text_width(figure, name) for name in self._names) + _SPACE
        width = WIDTH - _LEFT - _LEADER - number - name
        axes = place(figure, _LEFT, top, width, self._inner)
        quiet(axes)
        for label, curve in self._curves.items():
            draw_curve(axes, curve, self._strokes[label])
        limit_rounds(axes, [t for curve in self._curves.values() for run in curve.runs for t in run.rounds])
        values = [value for curve in self._curves.values() for run in curve.runs for value in run.values]
        if self._column == "target_accuracy":
            limit_percent(axes, values)
        else:
            axes.set_ylabel(self._column.replace("_", " "), fontsize=SMALL, color=FAINT)
        self._name_ends(figure, axes, top, width, number)

    def _final(self, row: Row) -> str:
        if self._column == "target_accuracy":
            return percent(row.accuracy) + ("%" if row.accuracy is not None else "")
        values = row.validators.get(self._column, ())
        return f"{fmean(values):.3g}" if values else "-"

    def _name_ends(self, figure: Figure, axes: Axes, top: float, width: float, number: float) -> None:
        """A number and a name for each line, as near to its end as the others leave room, and a leader to them."""
        low, high = axes.get_ylim()
        half_line = lines_height("", TEXT) / 2
        ends = [self._curves[row.label].end for row in self._rows]
        below = [(high - end[1]) / (high - low) * self._inner if end else self._inner for end in ends]
        edges = spread_apart([inches - half_line for inches in below], self._heights, self._inner)
        left = _LEFT + width + _LEADER
        for row, name, end, edge in zip(self._rows, self._names, ends, edges, strict=True):
            stroke = self._strokes[row.label]
            write(figure, left, top + edge, self._final(row), color=stroke.colour, weight="bold")
            write(figure, left + number, top + edge, name)
            if end:
                at = (1 + (_LEADER - 0.06) / width, 1 - (edge + half_line) / self._inner)
                leader = {"arrowstyle": "-", "shrinkA": 0, "shrinkB": 0, "color": stroke.colour, "linewidth": 1.1}
                axes.annotate(
                    "",
                    xy=end,
                    xytext=at,
                    textcoords="axes fraction",
                    arrowprops={**leader, "linestyle": stroke.dash},
                    annotation_clip=False,
                )


def draw_curve(axes: Axes, curve: Curve, stroke: Stroke) -> None:
    """The mean in full, the range behind it, and thinly what single runs measured after the last shared round."""
    line: dict[str, Any] = {"color": stroke.colour, "solid_capstyle": "round", "zorder": stroke.rank}
    if len(curve.runs) > 1:
        axes.fill_between(curve.rounds, curve.low, curve.high, color=stroke.colour, alpha=0.16, linewidth=0, zorder=2)
    marker = "o" if len(curve.rounds) == 1 else None
    axes.plot(curve.rounds, curve.mean, linestyle=stroke.dash, linewidth=stroke.width, marker=marker, **line)
    last = curve.rounds[-1] if curve.rounds else 0
    for run in curve.runs:
        tail = [(t, value) for t, value in zip(*run, strict=True) if t >= last]
        if len(tail) > 1:
            axes.plot(*zip(*tail, strict=True), linestyle=stroke.dash, linewidth=0.9, alpha=0.7, **line)


def _name(row: Row) -> str:
    return wrapped(f"{row.label}\n{row.note}" if row.note else row.label, _NAME_COLUMNS)
