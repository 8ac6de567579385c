"""One run over its rounds: accuracy on both domains, and how far the clients are from agreeing."""

from __future__ import annotations

from typing import Any

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
    limit_percent,
    limit_rounds,
    lines_height,
    place,
    quiet,
    spread_apart,
    strokes,
    whole_rounds,
    write,
)

_LEFT, _HEADING, _INNER = 0.62, 0.32, 4.4
_NAMES, _SIDE, _GAP = 1.55, 2.9, 0.5
"""Inches: from the large panel to the small ones, the width of those, and the space for the heading of each."""
_DISTANCES = {"consensus_gap": "consensus gap", "dual_norm": "dual norm", "drift": "client drift"}
_WIDE_RANGE = 50.0
"""A ratio of largest to smallest above which an axis is logarithmic."""


class RoundsPanel:
    """A large panel of accuracies beside small ones of consensus gap, dual norm and drift, all over the same rounds."""

    def __init__(self, run: Run) -> None:
        self._run = run
        target = strokes({run.label: [run]})[run.label].colour
        self._looks: dict[str, dict[str, Any]] = {
            "target": {"color": target, "linewidth": 2.6},
            "source": {"color": FAINT, "linewidth": 1.6, "linestyle": (0, (4, 1.6))},
        }
        self.height = _HEADING + _INNER + AXIS

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the panels with their upper edge at ``top`` inches below the figure's."""
        rounds = list(self._run.records)
        width = WIDTH - _LEFT - _NAMES - _SIDE - MARGIN
        write(figure, MARGIN, top, f"accuracy{self._gone_back()}", weight="bold")
        self._draw_accuracies(figure, top + _HEADING, width)
        left, side = WIDTH - MARGIN - _SIDE, (_INNER - 2 * _GAP) / 3
        for position, (name, heading) in enumerate(_DISTANCES.items()):
            series = self._run.series(name)
            logarithmic = _spans_magnitudes(series)
            upper = top + position * (side + _GAP)
            write(figure, left, upper, heading + (", log scale" if logarithmic else ""), weight="bold")
            axes = place(figure, left, upper + _HEADING, _SIDE, side)
            _draw_distance(axes, series, logarithmic)
            limit_rounds(axes, rounds)
            axes.xaxis.set_major_locator(whole_rounds(5))
            if position < len(_DISTANCES) - 1:
                axes.tick_params(labelbottom=False)
                axes.set_xlabel("")

    def _gone_back(self) -> str:
        times = len(self._run.series("rolled_back_to").rounds)
        if not times:
            return ""
        return "; the guard went back at the dotted line" + "s" * (times > 1)

    def _draw_accuracies(self, figure: Figure, top: float, width: float) -> None:
        axes = place(figure, _LEFT, top, width, _INNER)
        quiet(axes)
        measured = {domain: self._run.series(f"{domain}_accuracy") for domain in self._looks}
        lines = {domain: Series(t, [100 * value for value in values]) for domain, (t, values) in measured.items() if t}
        for domain, line in lines.items():
            _plot(axes, line, **self._looks[domain])
        for gone_back in self._run.series("rolled_back_to").rounds:
            axes.axvline(gone_back, color=FAINT, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
        low, high = limit_percent(axes, [value for line in lines.values() for value in line.values])
        limit_rounds(axes, list(self._run.records))
        if not lines:
            _say(axes, "not measured in any round")
        height = lines_height("\n", TEXT) + 0.08
        wanted = [(high - line.values[-1]) / (high - low) * _INNER - height / 2 for line in lines.values()]
        edges = spread_apart(wanted, [height] * len(lines), _INNER)
        for (domain, line), edge in zip(lines.items(), edges, strict=True):
            words = f"{domain}\n{line.values[-1]:.1f}%"
            write(figure, _LEFT + width + 0.1, top + edge, words, color=self._looks[domain]["color"], weight="bold")


def _draw_distance(axes: Axes, series: Series, logarithmic: bool) -> None:
    quiet(axes)
    if not any(series.values):
        axes.set_yticks([])
        _say(axes, "0 in every round" if series.values else "not measured in any round")
        return
    _plot(axes, series, color=INK, linewidth=1.6)
    if logarithmic:
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.08 * max(series.values))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
        axes.yaxis.set_major_formatter("{x:g}")


def _plot(axes: Axes, series: Series, **style: Any) -> None:
    axes.plot(*series, marker="o" if len(series.rounds) == 1 else "", solid_capstyle="round", **style)


def _spans_magnitudes(series: Series) -> bool:
    positive = [value for value in series.values if value > 0]
    return bool(positive) and max(positive) > _WIDE_RANGE * min(positive)


def _say(axes: Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=TEXT)
