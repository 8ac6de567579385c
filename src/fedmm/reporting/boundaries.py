"""Points in the plane: where each method puts the line between two classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmm.reporting.read import Boundary, Run, Samples
from fedmm.reporting.style import FAINT, INK, MARGIN, RULE, SMALL, TEXT, WIDTH, lines_height, place, wrapped, write
from fedmm.reporting.tables import percent

_GAP, _HEADING, _LEGEND = 0.22, 0.4, 0.22
_PER_ROW, _WIDEST = 4, 3.3
_CLASSES = (("#7B3294", "o"), ("#1B7837", "^"))
_HOLLOW: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 4.2,
    "markerfacecolor": "none",
    "markeredgecolor": "#555555",
    "markeredgewidth": 0.8,
}
_FILLED: dict[str, Any] = {"linestyle": "none", "markersize": 4.6, "markeredgecolor": "white", "markeredgewidth": 0.5}
_TINT = LinearSegmentedColormap.from_list("class_probability", ("#DCC8E6", "#FFFFFF", "#C4E3C6"))


class BoundaryPanel:
    """One panel a label, of one run each: its decision boundary over the source and the target points."""

    def __init__(self, runs: Sequence[tuple[Run, Samples, Boundary]]) -> None:
        self._runs = runs
        rows = math.ceil(len(runs) / _PER_ROW)
        self._columns = math.ceil(len(runs) / rows)
        self._width = min((WIDTH - 2 * MARGIN - (self._columns - 1) * _GAP) / self._columns, _WIDEST)
        self._side = self._width * _proportion(self._runs[0][2])
        self._names = [wrapped(run.label, int(self._width * 8.5) - 6) for run, _, _ in self._runs]
        self._title = max(lines_height(name, TEXT) for name in self._names) + 0.06
        self.height = _HEADING + rows * (self._title + self._side + _GAP) + _LEGEND

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the panels with their top edge at a distance from the figure's, in inches."""
        seeds = {run.seed for run, _, _ in self._runs}
        of_seed = f" (seed {seeds.pop()})" if len(seeds) == 1 else ""
        write(figure, MARGIN, top, f"decision boundary after the last round{of_seed}", weight="bold")
        for place_, (run, samples, boundary) in enumerate(self._runs):
            row, column = divmod(place_, self._columns)
            left = MARGIN + column * (self._width + _GAP)
            upper = top + _HEADING + row * (self._title + self._side + _GAP)
            write(figure, left, upper, self._names[place_])
            if run.target_accuracy is not None:
                write(figure, left + self._width, upper, f"{percent(run.target_accuracy)}%", ha="right", color=FAINT)
            axes = place(figure, left, upper + self._title, self._width, self._side)
            _draw_plane(axes, samples, boundary)
        _draw_legend(figure, top + self.height - _LEGEND)


def _proportion(boundary: Boundary) -> float:
    """Height over width of the grid, within what a panel can show."""
    width, height = np.ptp(boundary.grid_x), np.ptp(boundary.grid_y)
    return float(np.clip(height / width, 0.5, 1.25)) if width > 0 else 1.0


def _draw_plane(axes: Axes, samples: Samples, boundary: Boundary) -> None:
    x, y = boundary.grid_x, boundary.grid_y
    probability = np.ma.masked_invalid(boundary.probability.astype(np.float64))
    axes.pcolormesh(x, y, probability, cmap=_TINT, vmin=0, vmax=1, shading="gouraud", rasterized=True)
    if probability.min() < 0.5 < probability.max():
        axes.contour(x, y, probability, levels=[0.5], colors=[INK], linewidths=1.8)
    target = samples.target_x
    axes.plot(target[:, 0], target[:, 1], **_HOLLOW)
    for label, (colour, marker) in enumerate(_CLASSES):
        points = samples.source_x[samples.source_y == label]
        axes.plot(points[:, 0], points[:, 1], color=colour, marker=marker, **_FILLED)
    axes.set(xlim=(x.min(), x.max()), ylim=(y.min(), y.max()), xticks=[], yticks=[])
    axes.spines[:].set_color(RULE)


def _draw_legend(figure: Figure, top: float) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, label=f"source, class {label}", **_FILLED)
        for label, (colour, marker) in enumerate(_CLASSES)
    ]
    handles.append(Line2D([], [], label="target, unlabelled", **_HOLLOW))
    handles.append(Line2D([], [], color=INK, linewidth=1.8, label="decision boundary"))
    corner = (MARGIN / WIDTH, 1 - top / figure.get_figheight())
    style: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "labelcolor": FAINT, "ncols": len(handles)}
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, borderpad=0, borderaxespad=0, **style)
