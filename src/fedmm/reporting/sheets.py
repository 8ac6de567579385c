"""A sheet of samples of a data set: a block for each domain, a column for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from fedmm.reporting.figures import compose
from fedmm.reporting.images import pixels
from fedmm.reporting.read import Array
from fedmm.reporting.style import FAINT, MARGIN, SMALL, WIDTH, place, write

_HEADING, _CAPTION = 0.3, 0.25
_PITCH = 1.05
"""From one image to the next, in widths of an image."""
_FEWEST = 6
"""Columns; fewer do not grow."""
_LETTERS = 0.58
"""The width of a letter, in sizes of the font, by which captions are shrunk to their column."""


class Block(NamedTuple):
    """Samples of one domain: images ``[rows, columns, C, H, W]``, and what stands below each column, or nothing."""

    heading: str
    images: Array
    captions: Sequence[str]


def draw_sheet(path: Path, title: str, about: str, blocks: Sequence[Block]) -> Path:
    """Write a picture of the blocks below each other."""
    return compose(title, about, [_BlockPanel(block) for block in blocks], path)


class _BlockPanel:
    def __init__(self, block: Block) -> None:
        self._block = block
        rows, columns, _, height, width = block.images.shape
        self._side = (WIDTH - 2 * MARGIN) / (1 + (max(columns, _FEWEST) - 1) * _PITCH)
        self._down = self._side * height / width + (_PITCH - 1) * self._side
        self.height = _HEADING + rows * self._down + (_CAPTION if any(block.captions) else 0.0)

    def draw(self, figure: Figure, top: float) -> None:
        rows, columns, *image = self._block.images.shape
        write(figure, MARGIN, top, self._block.heading, weight="bold")
        shown = pixels(self._block.images.reshape(rows * columns, *image))
        height = self._side * image[1] / image[2]
        for number, one in enumerate(shown):
            row, column = divmod(number, columns)
            left = MARGIN + column * _PITCH * self._side
            axes = place(figure, left, top + _HEADING + row * self._down, self._side, height)
            axes.imshow(one, interpolation="nearest", aspect="auto")
            axes.set_axis_off()
        below = top + _HEADING + rows * self._down
        longest = max(map(len, self._block.captions), default=1) or 1
        size = min(SMALL, 72 * self._side / (_LETTERS * longest))
        for column, caption in enumerate(self._block.captions):
            middle = MARGIN + (column * _PITCH + 0.5) * self._side
            write(figure, middle, below, caption, ha="center", fontsize=size, color=FAINT)
