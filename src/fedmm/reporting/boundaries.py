"""Points in the plane: where each method puts the line between two classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D

from fedmm.reporting.read import Boundary, Samples
from fedmm.reporting.style import FAINT, INK, RULE, SMALL, TEXT, WIDTH, Strip, lines_height, wrap_text
from fedmm.reporting.tables import percent

_PER_ROW, _WIDEST = 4, 4.8
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


def boundary_strip(planes: Sequence[Plane], heading: str) -> Strip:
    """Axes for each label: a run's decision boundary over the source and the target points."""
    left, right, bottom, top = _window(planes)
    proportion = min(max((top - bottom) / (right - left), 0.5), 1.25)
    rows = math.ceil(len(planes) / _PER_ROW)
    columns = math.ceil(len(planes) / rows)
    width = min((WIDTH - 0.3) / columns - 0.15, _WIDEST)
    names = [wrap_text(plane.label, width - 0.6) for plane in planes]
    titles = sum(
        max(lines_height(name, TEXT) for name in names[i : i + columns]) for i in range(0, len(names), columns)
    )

    def draw(part: SubFigure) -> None:
        grid = part.subplots(rows, columns, squeeze=False).ravel()
        for axes, plane, name in zip(grid, planes, names, strict=False):
            axes.set_title(name, loc="left", fontsize=TEXT, color=INK)
            if plane.accuracy is not None:
                axes.set_title(f"{percent(plane.accuracy)}%", loc="right", fontsize=TEXT, color=FAINT)
            _draw_points(axes, plane)
            axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], box_aspect=proportion, anchor="W")
            axes.spines[:].set_color(RULE)
        for axes in grid[len(planes) :]:
            axes.set_axis_off()
        _add_legend(part)

    return Strip(0.75 + titles + rows * (width * proportion + 0.15), draw, heading)


def _window(planes: Sequence[Plane]) -> list[float]:
    """Left, right, bottom and top of all points with room around them, as far as the first grid reaches."""
    samples = [plane.samples for plane in planes]
    points = np.concatenate([x for sample in samples for x in (sample.source_x, sample.target_x)])
    edges = []
    for axis, grid in enumerate((planes[0].boundary.grid_x, planes[0].boundary.grid_y)):
        low, high = points[:, axis].min(), points[:, axis].max()
        room = 0.15 * (high - low) or 1.0
        edges += [float(max(low - room, grid.min())), float(min(high + room, grid.max()))]
    return edges


def _draw_points(axes: Axes, plane: Plane) -> None:
    x, y = plane.boundary.grid_x, plane.boundary.grid_y
    probability = np.ma.masked_invalid(plane.boundary.probability.astype(np.float64))
    axes.contourf(x, y, probability, levels=_STEPS, cmap=_TINT)
    if probability.min() < 0.5 < probability.max():
        axes.contour(x, y, probability, levels=[0.5], colors=[_LINE["color"]], linewidths=[_LINE["linewidth"]])
    axes.plot(*plane.samples.target_x.T, **_HOLLOW)
    for label, (colour, marker) in enumerate(_CLASSES):
        axes.plot(*plane.samples.source_x[plane.samples.source_y == label].T, color=colour, marker=marker, **_FILLED)


def _add_legend(part: SubFigure) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, label=f"source, class {label}", **_FILLED)
        for label, (colour, marker) in enumerate(_CLASSES)
    ]
    handles.append(Line2D([], [], label="target, unlabelled", **_HOLLOW))
    handles.append(Line2D([], [], label="decision boundary", **_LINE))
    part.legend(
        handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=SMALL, labelcolor=FAINT,
        handlelength=1.4, handletextpad=0.5, markerscale=1.4,
    )  # fmt: skip
