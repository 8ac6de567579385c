"""One run over its rounds: accuracy on both domains, and how far the clients are from agreeing."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from fedmm.reporting.read import Run, Series
from fedmm.reporting.style import (
    AXIS,
    FAINT,
    INK,
    MARGIN,
    TEXT,
    WIDTH,
    limit_rounds,
    lines_height,
    percent_range,
    place,
    quiet,
    spread_apart,
    write,
)

_LEFT, _HEADING, _INNER = 0.62, 0.32, 4.4
_NAMES, _SIDE, _GAP = 1.75, 2.9, 0.42
"""Inches: from the large panel to the small ones, the width of those, and the space for the heading of each."""
_ACCURACIES = {"target_accuracy": ("target", "#D55E00", 2.6), "source_accuracy": ("source", "#8C8C8C", 1.9)}
_DISTANCES = {"consensus_gap": "consensus gap", "dual_norm": "dual norm", "drift": "client drift"}
_WIDE_RANGE = 50.0
"""A ratio of largest to smallest above which an axis is logarithmic."""


class RoundsPanel:
    """A large panel of accuracies beside small ones of consensus gap, dual norm and drift, all over the same rounds."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.height = _HEADING + _INNER + AXIS

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the panels with their upper edge at ``top`` inches below the figure's."""
        rounds = list(self._run.records)
        width = WIDTH - _LEFT - _NAMES - _SIDE - MARGIN
        write(figure, MARGIN, top, "accuracy", weight="bold")
        self._draw_accuracies(place(figure, _LEFT, top + _HEADING, width, _INNER), rounds, width)
        left, side = WIDTH - MARGIN - _SIDE, (_INNER - 2 * _GAP) / 3
        for position, (name, heading) in enumerate(_DISTANCES.items()):
            series = self._run.series(name)
            logarithmic = _spans_magnitudes(series)
            upper = top + position * (side + _GAP)
            write(figure, left, upper, heading + (", log scale" if logarithmic else ""), weight="bold")
            axes = place(figure, left, upper + _HEADING, _SIDE, side)
            _draw_distance(axes, series, logarithmic)
            limit_rounds(axes, rounds)
            if position < len(_DISTANCES) - 1:
                axes.tick_params(labelbottom=False)
                axes.set_xlabel("")

    def _draw_accuracies(self, axes: Axes, rounds: list[int], width: float) -> None:
        quiet(axes)
        lines = []
        for name, (words, colour, thickness) in _ACCURACIES.items():
            t, fractions = self._run.series(name)
            values = [100 * fraction for fraction in fractions]
            _plot(axes, Series(t, values), color=colour, linewidth=thickness)
            if values:
                lines.append((f"{words}\n{values[-1]:.1f}%", colour, values))
        low, high = percent_range([value for _, _, values in lines for value in values])
        axes.set_ylim(low, high)
        axes.yaxis.set_major_formatter("{x:g}%")
        limit_rounds(axes, rounds)
        if not lines:
            _say(axes, "not measured in any round")
        heights = [lines_height(words, TEXT) for words, _, _ in lines]
        wanted = [(values[-1] - low) / (high - low) * _INNER for _, _, values in lines]
        for (words, colour, _), centre in zip(lines, spread_apart(wanted, heights, 0.0, _INNER), strict=True):
            at = (1 + 0.1 / width, centre / _INNER)
            axes.text(*at, words, transform=axes.transAxes, va="center", color=colour, fontsize=TEXT, weight="bold")


def _draw_distance(axes: Axes, series: Series, logarithmic: bool) -> None:
    quiet(axes)
    _plot(axes, series, color=INK, linewidth=1.6)
    if logarithmic:
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.08 * max(series.values, default=0.0) or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
    if not any(series.values):
        _say(axes, "0 in every round" if series.values else "not measured in any round")


def _plot(axes: Axes, series: Series, **style: object) -> None:
    axes.plot(*series, marker="o" if len(series.rounds) == 1 else "", solid_capstyle="round", clip_on=True, **style)


def _spans_magnitudes(series: Series) -> bool:
    positive = [value for value in series.values if value > 0]
    return bool(positive) and max(positive) > _WIDE_RANGE * min(positive)


def _say(axes: Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=TEXT)
