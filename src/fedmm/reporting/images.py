"""A few images of both domains, one row each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedmm.reporting.read import Array, Samples
from fedmm.reporting.style import FAINT, MARGIN, SMALL, WIDTH, place, write

_HEADING, _CAPTION, _GAP = 0.3, 0.25, 0.16
_FEWEST, _MOST = 8, 12
"""Images in a row: more than _MOST are left out, fewer than _FEWEST do not grow."""
_PITCH = 1.07
"""From one image to the next, in widths of an image."""

_TINY = 16
"""Pixels on a side below which single pixels would hide what the image shows, so that it is smoothed."""


class _Row(NamedTuple):
    heading: str
    images: Array
    captions: list[str]


class ImagePanel:
    """Two rows of images: the source site's with their classes, the target site's without."""

    def __init__(self, samples: Samples) -> None:
        classes = [str(label) for label in samples.source_y[:_MOST].tolist()]
        source = _Row("source site (labelled)", samples.source_x[:_MOST], classes)
        target = _Row("target site (unlabelled)", samples.target_x[:_MOST], [])
        self._rows = [row for row in (source, target) if len(row.images)]
        slots = max([_FEWEST, *(len(row.images) for row in self._rows)])
        self._width = (WIDTH - 2 * MARGIN) / (1 + (slots - 1) * _PITCH)
        self.height = sum(self._height(row) for row in self._rows) + _GAP * (len(self._rows) - 1)

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the rows with their upper edge at ``top`` inches below the figure's."""
        for row in self._rows:
            write(figure, MARGIN, top, row.heading, weight="bold")
            self._draw_row(figure, top + _HEADING, row)
            top += self._height(row) + _GAP

    def _image_height(self, row: _Row) -> float:
        height, width = row.images.shape[-2:]
        return float(self._width * height / width)

    def _height(self, row: _Row) -> float:
        return _HEADING + self._image_height(row) + (_CAPTION if row.captions else 0.0)

    def _draw_row(self, figure: Figure, top: float, row: _Row) -> None:
        widths = 1 + (len(row.images) - 1) * _PITCH
        axes = place(figure, MARGIN, top, widths * self._width, self._image_height(row))
        smoothing = "nearest" if min(row.images.shape[-2:]) >= _TINY else "bicubic"
        for position, image in enumerate(pixels(row.images)):
            left = position * _PITCH
            axes.imshow(image, extent=(left, left + 1, 0, 1), interpolation=smoothing)
        axes.set(xlim=(0, widths), ylim=(0, 1), aspect="auto")
        axes.set_axis_off()
        below = top + self._image_height(row) + 0.04
        for position, caption in enumerate(row.captions):
            middle = MARGIN + (position * _PITCH + 0.5) * self._width
            write(figure, middle, below, caption, ha="center", fontsize=SMALL, color=FAINT)


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
