"""Points in the plane: where each method puts the line between two classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmm.reporting.read import Boundary, Samples
from fedmm.reporting.style import (
    FAINT,
    INK,
    MARGIN,
    RULE,
    SMALL,
    TEXT,
    WIDTH,
    lines_height,
    place,
    wrapped,
    write,
)
from fedmm.reporting.tables import percent

_GAP, _HEADING, _LEGEND = 0.2, 0.36, 0.22
_PER_ROW, _WIDEST = 4, 4.8
_ACCURACY_COLUMNS = 7
_CLASSES = (("#7B3294", "o"), ("#1B7837", "^"))
_TINT = LinearSegmentedColormap.from_list("class_probability", ("#DECBE8", "#FFFFFF", "#C8E6CA"))
_STEPS = np.linspace(-0.001, 1.001, 12)
_FILLED: dict[str, Any] = {"linestyle": "none", "markersize": 4.0, "markeredgecolor": "white", "markeredgewidth": 0.4}
_HOLLOW: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 3.6,
    "markerfacecolor": "none",
    "markeredgecolor": "#5A5A5A",
    "markeredgewidth": 0.7,
}
_LINE: dict[str, Any] = {"color": INK, "linewidth": 1.8}


class Plane(NamedTuple):
    """What one run made of the plane, under its label."""

    label: str
    accuracy: float | None
    samples: Samples
    boundary: Boundary


class _Window(NamedTuple):
    """The part of the plane that is shown."""

    left: float
    right: float
    bottom: float
    top: float

    @property
    def proportion(self) -> float:
        """Height over width, within what a panel can show."""
        return min(max((self.top - self.bottom) / (self.right - self.left), 0.5), 1.25)


class BoundaryPanel:
    """One panel a label: a run's decision boundary over the source and the target points."""

    def __init__(self, planes: Sequence[Plane], heading: str) -> None:
        self._heading = heading
        self._window = _window(planes)
        rows = math.ceil(len(planes) / _PER_ROW)
        columns = math.ceil(len(planes) / rows)
        self._width = min((WIDTH - 2 * MARGIN - (columns - 1) * _GAP) / columns, _WIDEST)
        self._side = self._width * self._window.proportion
        self._rows = [planes[i : i + columns] for i in range(0, len(planes), columns)]
        self.height = _HEADING + sum(self._title(row) + self._side + _GAP for row in self._rows) + _LEGEND

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the panels with their upper edge at ``top`` inches below the figure's."""
        write(figure, MARGIN, top, self._heading, weight="bold")
        top += _HEADING
        for row in self._rows:
            top += self._title(row)
            for column, plane in enumerate(row):
                self._draw_plane(figure, MARGIN + column * (self._width + _GAP), top, plane)
            top += self._side + _GAP
        _draw_legend(figure, top)

    def _name(self, plane: Plane) -> str:
        return wrapped(plane.label, max(int(self._width * 72 / (0.6 * TEXT)) - _ACCURACY_COLUMNS, 8))

    def _title(self, row: Sequence[Plane]) -> float:
        return max(lines_height(self._name(plane), TEXT) for plane in row) + 0.05

    def _draw_plane(self, figure: Figure, left: float, top: float, plane: Plane) -> None:
        name = self._name(plane)
        above = top - 0.05
        write(figure, left, above - lines_height(name, TEXT), name)
        if plane.accuracy is not None:
            upper = above - lines_height(name, TEXT)
            write(figure, left + self._width, upper, f"{percent(plane.accuracy)}%", ha="right", color=FAINT)
        axes = place(figure, left, top, self._width, self._side)
        _draw_points(axes, plane)
        left_edge, right, bottom, upper_edge = self._window
        axes.set(xlim=(left_edge, right), ylim=(bottom, upper_edge), xticks=[], yticks=[])
        axes.spines[:].set_color(RULE)


def _window(planes: Sequence[Plane]) -> _Window:
    """All points with room around them, as far as the first grid reaches."""
    samples = [plane.samples for plane in planes]
    points = np.concatenate([x for sample in samples for x in (sample.source_x, sample.target_x)])
    edges = []
    for axis, grid in enumerate((planes[0].boundary.grid_x, planes[0].boundary.grid_y)):
        low, high = points[:, axis].min(), points[:, axis].max()
        room = 0.15 * (high - low) or 1.0
        edges += [float(max(low - room, grid.min())), float(min(high + room, grid.max()))]
    return _Window(*edges)


def _draw_points(axes: Axes, plane: Plane) -> None:
    x, y = plane.boundary.grid_x, plane.boundary.grid_y
    probability = np.ma.masked_invalid(plane.boundary.probability.astype(np.float64))
    axes.contourf(x, y, probability, levels=_STEPS, cmap=_TINT)
    if probability.min() < 0.5 < probability.max():
        axes.contour(x, y, probability, levels=[0.5], colors=[_LINE["color"]], linewidths=[_LINE["linewidth"]])
    axes.plot(*plane.samples.target_x.T, **_HOLLOW)
    for label, (colour, marker) in enumerate(_CLASSES):
        axes.plot(*plane.samples.source_x[plane.samples.source_y == label].T, color=colour, marker=marker, **_FILLED)


def _draw_legend(figure: Figure, top: float) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, label=f"source, class {label}", **_FILLED)
        for label, (colour, marker) in enumerate(_CLASSES)
    ]
    handles.append(Line2D([], [], label="target, unlabelled", **_HOLLOW))
    handles.append(Line2D([], [], label="decision boundary", **_LINE))
    corner = (MARGIN / WIDTH, 1 - top / figure.get_figheight())
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=corner,
        ncols=len(handles),
        frameon=False,
        fontsize=SMALL,
        labelcolor=FAINT,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.4,
        handletextpad=0.5,
        markerscale=1.4,
    )
