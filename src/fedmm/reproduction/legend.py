"""One legend for all panels of a figure: entries set like words, which wrap at the figure's width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmm.reporting.style import INK, lines_height, text_width, write
from fedmm.reproduction.panels import BOUND, CROSS, SMALL, Panel

_SAMPLE, _NEAR, _APART = 0.34, 0.07, 0.2
"""Inches: a piece of line, from there to its label, and from one entry to the next."""


class _Entry(NamedTuple):
    label: str
    row: int
    left: float
    style: Mapping[str, Any]


class Legend:
    """Its height is known before it is drawn."""

    def __init__(self, panels: Sequence[Panel], left: float, right: float, scratch: Figure) -> None:
        self._entries: list[_Entry] = []
        row, at = 0, left
        for label, style in _styles(panels).items():
            needed = _SAMPLE + _NEAR + text_width(scratch, label, fontsize=SMALL)
            if at > left and at + needed > right:
                row, at = row + 1, left
            self._entries.append(_Entry(label, row, at, style))
            at += needed + _APART
        self.height = (row + 1) * lines_height("", SMALL) if self._entries else 0.0

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the entries with their upper edge at ``top`` inches below the figure's."""
        across, down = figure.get_size_inches()
        for label, row, left, style in self._entries:
            upper = top + row * lines_height("", SMALL)
            middle = 1 - (upper + 0.62 * SMALL / 72) / down
            ends = [left + _SAMPLE / 2] if "marker" in style else [left, left + _SAMPLE]
            places = [end / across for end in ends]
            figure.add_artist(Line2D(places, [middle] * len(ends), transform=figure.transFigure, **style))
            write(figure, left + _SAMPLE + _NEAR, upper, label, fontsize=SMALL)


def _styles(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    lines = [line for panel in panels for line in panel.lines]
    styles: dict[str, dict[str, Any]] = {
        line.label: {"color": line.stroke.colour, "linestyle": line.stroke.dash, "linewidth": line.stroke.width}
        for line in lines
    }
    if any(run.diverged for line in lines for run in line.runs):
        styles["diverged"] = {"color": INK, "linestyle": "", **CROSS}
    if any(panel.bounds for panel in panels):
        styles["bound"] = BOUND
    return styles
