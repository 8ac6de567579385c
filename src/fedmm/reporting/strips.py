"""Strips of a figure that show rows of data: decision boundaries in the plane, and images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D

from fedmm.reporting.read import Array, Boundary, Samples
from fedmm.reporting.style import FAINT, INK, RULE, SMALL, TEXT, WIDTH, Strip, compose, lines_height, wrap_text
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


_FEWEST, _MOST = 8, 12
"""Images of a run in a row: more than _MOST are left out. Fewer than _FEWEST do not grow."""
_PITCH = 1.06
"""From one image to the next, in widths of an image."""
_TINY = 16
"""Pixels on a side below which single pixels would hide what the image shows, so that it is smoothed."""
_LETTER = 0.58
"""The width of a letter, in sizes of the font, by which captions are shrunk to their column."""


class SampleBlock(NamedTuple):
    """Samples of one domain: images ``[rows, columns, C, H, W]``, and what stands below each column, or nothing."""

    heading: str
    images: Array
    captions: Sequence[str]


def draw_sheet(path: Path, title: str, about: str, blocks: Sequence[SampleBlock]) -> Path:
    """Write a picture of the blocks below each other."""
    return compose(title, about, [_block_strip(block) for block in blocks], path)


def image_strips(samples: Samples) -> list[Strip]:
    """A row of the source site's images with their classes, and one of the target site's without."""
    classes = [str(label) for label in samples.source_y[:_MOST].tolist()]
    source = SampleBlock("source site (labelled)", samples.source_x[None, :_MOST], classes)
    target = SampleBlock("target site (unlabelled)", samples.target_x[None, :_MOST], [])
    return [_block_strip(block) for block in (source, target) if block.images.size]


def _block_strip(block: SampleBlock) -> Strip:
    rows, columns, _, *size = block.images.shape
    slots = max(columns, _FEWEST)
    high, down = size[0] / size[1], size[0] / size[1] + _PITCH - 1
    side = (WIDTH - 0.3) / (slots * _PITCH)

    def draw(part: SubFigure) -> None:
        axes = part.subplots()
        smoothing = "nearest" if min(size) >= _TINY else "bicubic"
        for number, image in enumerate(pixels(block.images.reshape(rows * columns, -1, *size))):
            row, column = divmod(number, columns)
            left, top = column * _PITCH, row * down
            axes.imshow(image, extent=(left, left + 1, top + high, top), interpolation=smoothing)
        axes.set(xlim=(0, slots * _PITCH), ylim=(rows * down, 0), anchor="NW", aspect="equal", yticks=[])
        longest = max(map(len, block.captions), default=1) or 1
        font = min(SMALL, 72 * side / (_LETTER * longest))
        places = [column * _PITCH + 0.5 for column in range(len(block.captions))]
        axes.set_xticks(places, block.captions, fontsize=font, color=FAINT)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    return Strip(0.5 + rows * down * side + (0.25 if any(block.captions) else 0.0), draw, block.heading)


def pixels(images: Array) -> Array:
    """Images ``[k, C, H, W]`` as colours ``[k, H, W, 3]`` in [0, 1]; channels other than three become one grey.

    Bytes are divided by 255. Values outside [0, 1] were standardised, and are stretched back over all the images.
    """
    values = images.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if np.issubdtype(images.dtype, np.integer):
        values = values / 255
    elif low < 0 or high > 1:
        values = (values - low) / (high - low or 1.0)
    if values.shape[1] != 3:
        values = values.mean(axis=1, keepdims=True).repeat(3, axis=1)
    return values.transpose(0, 2, 3, 1).clip(0, 1)
