"""A table as a picture: rules as a printed table has them, the paper's number in grey below ours."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmm.reporting.style import FAINT, INK, fitted, lines_height, new_figure, text_width, write
from fedmm.reproduction.tables import Grid, Number, Row

_TITLE, _TEXT, _SMALL = 9.0, 8.0, 6.8
_MARGIN, _PAD, _GROUP_PAD, _BETWEEN = 0.1, 0.13, 0.14, 0.22
_LEAST_WIDTH = 5.0


def draw_tables(title: str, grids: Sequence[Grid]) -> Figure:
    """The grids of a table, one below the other, as wide as the widest needs."""
    scratch = new_figure(1.0, _LEAST_WIDTH)
    boards = [_Board(grid, scratch) for grid in grids]
    width = max(_LEAST_WIDTH, *(board.width + 2 * _MARGIN for board in boards))
    inner = width - 2 * _MARGIN
    heading = fitted(scratch, title, inner, fontsize=_TITLE, weight="bold")
    notes = [fitted(scratch, "\n".join(f"{note}." for note in grid.notes), inner, fontsize=_SMALL) for grid in grids]
    top = _MARGIN + lines_height(heading, _TITLE) + 0.08
    height = sum(board.height + 0.08 + lines_height(note, _SMALL) for board, note in zip(boards, notes, strict=True))
    figure = new_figure(top + height + _BETWEEN * (len(grids) - 1) + _MARGIN, width)
    write(figure, _MARGIN, _MARGIN, heading, fontsize=_TITLE, weight="bold")
    for board, note in zip(boards, notes, strict=True):
        board.draw(figure, top)
        write(figure, _MARGIN, top + board.height + 0.08, note, fontsize=_SMALL, color=FAINT)
        top += board.height + 0.08 + lines_height(note, _SMALL) + _BETWEEN
    return figure


class _Board:
    """Where the parts of one grid stand, in inches from its upper left corner."""

    def __init__(self, grid: Grid, scratch: Figure) -> None:
        self._grid = grid
        self._line = lines_height("", _TEXT)
        self._grouped = any(column.group for column in grid.columns)
        self._heights = [self._row_height(row) for row in grid.rows]
        self._first = max(text_width(scratch, row.title, fontsize=_TEXT) for row in grid.rows) + _PAD
        widths = [self._column_width(i, scratch) for i in range(len(grid.columns))]
        for group in dict.fromkeys(column.group for column in grid.columns):
            members = [i for i, column in enumerate(grid.columns) if column.group == group]
            short = text_width(scratch, group, fontsize=_TEXT, weight="bold") - sum(widths[i] for i in members)
            for i in members:
                widths[i] += max(short, 0.0) / len(members)
        self._edges: list[tuple[float, float]] = []
        left = self._first
        for i, width in enumerate(widths):
            if i and grid.columns[i].group != grid.columns[i - 1].group:
                left += _GROUP_PAD
            self._edges.append((left, left + width))
            left += width
        self._head = self._line * (2 if self._grouped else 1) + 0.12
        self.width = left
        self.height = self._head + sum(self._heights) + 0.1

    def _row_height(self, row: Row) -> float:
        below = any(self._below(number) for number in row.numbers)
        return self._line + (lines_height("", _SMALL) - 0.02 if below else 0.0) + 0.05

    def _column_width(self, i: int, scratch: Figure) -> float:
        numbers = [row.numbers[i] for row in self._grid.rows]
        words = [
            text_width(scratch, self._grid.columns[i].heading, fontsize=_TEXT),
            *(text_width(scratch, self._grid.ours(number), fontsize=_TEXT, weight="bold") for number in numbers),
            *(text_width(scratch, self._below(number), fontsize=_SMALL) for number in numbers),
        ]
        return max(words) + _PAD

    def _below(self, number: Number) -> str:
        share = f"[{number.share}]" if number.share else ""
        return " ".join(part for part in (share, self._grid.paper(number)) if part)

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the grid with its upper edge at ``top`` inches below the figure's."""
        self._rule(figure, top, 0.0, self.width, 1.0)
        self._draw_heads(figure, top + 0.03)
        top += self._head
        self._rule(figure, top - 0.03, 0.0, self.width, 0.6)
        for position, (row, height) in enumerate(zip(self._grid.rows, self._heights, strict=True)):
            average = len(self._grid.rows) > 1 and position == len(self._grid.rows) - 1
            if average:
                self._rule(figure, top + 0.01, 0.0, self.width, 0.6)
                top += 0.05
            write(figure, _MARGIN, top + 0.03, row.title, fontsize=_TEXT, weight="bold" if average else "normal")
            for (left, right), number in zip(self._edges, row.numbers, strict=True):
                middle = _MARGIN + (left + right) / 2
                colour = INK if number.value is not None else FAINT
                weight = "bold" if number.best else "normal"
                ours = self._grid.ours(number)
                write(figure, middle, top + 0.03, ours, fontsize=_TEXT, color=colour, weight=weight, ha="center")
                below = top + 0.03 + self._line - 0.02
                write(figure, middle, below, self._below(number), fontsize=_SMALL, color=FAINT, ha="center")
            top += height
        self._rule(figure, top + 0.02, 0.0, self.width, 1.0)

    def _draw_heads(self, figure: Figure, top: float) -> None:
        columns = self._grid.columns
        if self._grouped:
            for group in dict.fromkeys(column.group for column in columns):
                edges = [edge for edge, column in zip(self._edges, columns, strict=True) if column.group == group]
                left, right = edges[0][0], edges[-1][1]
                write(figure, _MARGIN + (left + right) / 2, top, group, fontsize=_TEXT, weight="bold", ha="center")
                self._rule(figure, top + self._line + 0.01, left + 0.03, right - 0.03, 0.5)
            top += self._line + 0.03
        for (left, right), column in zip(self._edges, columns, strict=True):
            write(figure, _MARGIN + (left + right) / 2, top, column.heading, fontsize=_TEXT, ha="center")

    def _rule(self, figure: Figure, top: float, left: float, right: float, weight: float) -> None:
        across, down = figure.get_size_inches()
        ends = [(_MARGIN + left) / across, (_MARGIN + right) / across]
        level = [1 - top / down] * 2
        figure.add_artist(Line2D(ends, level, transform=figure.transFigure, color=INK, linewidth=weight))
