"""A table as a picture: rules as a printed table has them, the paper's number in grey below ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedmm.reporting.style import FAINT, INK, PLAIN, lines_height, new_figure, wrap_text
from fedmm.reproduction.tables import Grid, Number

_TITLE, _TEXT, _SMALL = 9.0, 8.0, 6.8
_MARGIN, _GROUP_GAP, _LEAST_WIDTH = 0.1, 0.14, 5.0
_LETTER = 0.6
"""The width of a letter, in sizes of the font."""
_ROW, _BELOW = lines_height("", _TEXT) + 0.05, lines_height("", _SMALL) - 0.02
"""Inches: of a row, and of the smaller line below a number."""


def draw_tables(title: str, grids: Sequence[Grid]) -> Figure:
    """The grids of a table, one below the other, as wide as the widest needs."""
    edges = [_column_edges(grid) for grid in grids]
    width = max(_LEAST_WIDTH, *(each[-1][1] + 2 * _MARGIN for each in edges))
    title = wrap_text(title, width, _TITLE)
    notes = [wrap_text("\n".join(f"{note}." for note in grid.notes), width, _SMALL) for grid in grids]
    heights = [_grid_height(grid) for grid in grids]
    top = _MARGIN + lines_height(title, _TITLE) + 0.08
    bottom = top + sum(heights) + sum(lines_height(note, _SMALL) + 0.25 for note in notes)
    with rc_context(PLAIN):
        figure = new_figure(bottom, width)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1), xlim=(-_MARGIN, width - _MARGIN), ylim=(bottom, 0))
        axes.set_axis_off()
        _write(axes, 0, _MARGIN, title, fontsize=_TITLE, weight="bold")
        for grid, columns, note, height in zip(grids, edges, notes, heights, strict=True):
            _draw_grid(axes, grid, columns, top)
            _write(axes, 0, top + height + 0.06, note, fontsize=_SMALL, color=FAINT)
            top += height + lines_height(note, _SMALL) + 0.25
    return figure


def _below(grid: Grid, number: Number) -> str:
    share = f"[{number.share}]" if number.share else ""
    return " ".join(part for part in (share, grid.paper(number)) if part)


def _column_edges(grid: Grid) -> list[tuple[float, float]]:
    """Left and right of each column in inches; the columns of a group are at least as wide as its name."""
    widths = []
    for i, column in enumerate(grid.columns):
        numbers = [row.numbers[i] for row in grid.rows]
        letters = max(len(column.heading), *(len(grid.ours(number)) for number in numbers))
        below = max(len(_below(grid, number)) for number in numbers)
        members = sum(other.group == column.group for other in grid.columns)
        sizes = (letters * _TEXT, below * _SMALL, len(column.group) * _TEXT / members)
        widths.append(_LETTER * max(sizes) / 72 + 0.1)
    left = _LETTER * _TEXT / 72 * max(len(row.title) for row in grid.rows) + 0.13
    edges = []
    for i, width in enumerate(widths):
        left += _GROUP_GAP if i and grid.columns[i].group != grid.columns[i - 1].group else 0.0
        edges.append((left, left + width))
        left += width
    return edges


def _head_height(grid: Grid) -> float:
    return _ROW * (2 if any(column.group for column in grid.columns) else 1) + 0.04


def _row_heights(grid: Grid) -> list[float]:
    return [_ROW + _BELOW * any(_below(grid, number) for number in row.numbers) for row in grid.rows]


def _grid_height(grid: Grid) -> float:
    return _head_height(grid) + sum(_row_heights(grid)) + 0.1


def _draw_grid(axes: Axes, grid: Grid, edges: Sequence[tuple[float, float]], top: float) -> None:
    """Headings, then the rows; the last of several is the average."""
    right = edges[-1][1]
    middles = [(left + end) / 2 for left, end in edges]
    bottom = top + _head_height(grid)
    axes.hlines([top, bottom - 0.02], 0, right, INK, linewidths=[1.0, 0.6])
    for group in dict.fromkeys(column.group for column in grid.columns if column.group):
        own = [edge for edge, column in zip(edges, grid.columns, strict=True) if column.group == group]
        _write(axes, (own[0][0] + own[-1][1]) / 2, top + 0.03, group, weight="bold", ha="center")
        axes.hlines(top + _ROW, own[0][0] + 0.03, own[-1][1] - 0.03, INK, linewidths=0.5)
    for middle, column in zip(middles, grid.columns, strict=True):
        _write(axes, middle, bottom - _ROW, column.heading, ha="center")
    top = bottom
    for position, (row, height) in enumerate(zip(grid.rows, _row_heights(grid), strict=True)):
        average = len(grid.rows) > 1 and position == len(grid.rows) - 1
        if average:
            axes.hlines(top + 0.01, 0, right, INK, linewidths=0.6)
            top += 0.04
        _write(axes, 0, top + 0.03, row.title, weight="bold" if average else "normal")
        for middle, number in zip(middles, row.numbers, strict=True):
            style = {"color": INK if number.value is not None else FAINT, "weight": "bold" if number.best else "normal"}
            _write(axes, middle, top + 0.03, grid.ours(number), ha="center", **style)
            _write(axes, middle, top + _ROW - 0.055, _below(grid, number), fontsize=_SMALL, color=FAINT, ha="center")
        top += height
    axes.hlines(top + 0.03, 0, right, INK, linewidths=1.0)


def _write(axes: Axes, x: float, y: float, words: str, **style: Any) -> None:
    axes.text(x, y, words, **{"fontsize": _TEXT, "color": INK, "va": "top", "linespacing": 1.3, **style})
