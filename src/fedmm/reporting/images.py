"""A few images of both domains, one row each."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedmm.reporting.read import Array, Samples
from fedmm.reporting.style import FAINT, MARGIN, SMALL, WIDTH, place, write

_HEADING, _CAPTION, _GAP = 0.3, 0.25, 0.18
_FEWEST, _MOST = 8, 12
"""Images in a row: more than _MOST are left out, fewer than _FEWEST do not grow."""
_SEAM = 0.08
"""The space between two images as a part of an image's width."""


class ImagePanel:
    """Two rows of images: the source site's with their classes, the target site's without."""

    def __init__(self, samples: Samples) -> None:
        source = [str(label) for label in samples.source_y[:_MOST].tolist()]
        self._rows = [
            ("source site (labelled)", samples.source_x[:_MOST], source),
            ("target site (unlabelled)", samples.target_x[:_MOST], []),
        ]
        count = max(len(x) for _, x, _ in self._rows)
        slots = min(max(count, _FEWEST), _MOST)
        self._side = (WIDTH - 2 * MARGIN) / (slots + (slots - 1) * _SEAM)
        self.height = sum(self._height(x, captions) for _, x, captions in self._rows) + _GAP

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the rows with their top edge at a distance from the figure's, in inches."""
        for heading, x, captions in self._rows:
            write(figure, MARGIN, top, heading, weight="bold")
            if len(x):
                self._draw_row(figure, top + _HEADING, x, captions)
            top += self._height(x, captions) + _GAP

    def _height(self, x: Array, captions: list[str]) -> float:
        return _HEADING + self._side * x.shape[-2] / x.shape[-1] + (_CAPTION if captions else 0.0)

    def _draw_row(self, figure: Figure, top: float, x: Array, captions: list[str]) -> None:
        pixels = strip(x)
        height, width = x.shape[-2:]
        inches = self._side / width
        axes = place(figure, MARGIN, top, pixels.shape[1] * inches, height * inches)
        axes.imshow(pixels, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        pitch = (pixels.shape[1] - width) / (len(x) - 1) if len(x) > 1 else 0
        for position, caption in enumerate(captions):
            left = MARGIN + (position * pitch + width / 2) * inches
            write(figure, left, top + height * inches + 0.05, caption, ha="center", fontsize=SMALL, color=FAINT)


def strip(x: Array) -> Array:
    """Images ``[k, C, H, W]`` side by side on white: ``[H, width, 3]`` in [0, 1]. Channels other than 3 become one grey."""
    values = x.astype(np.float64)
    if values.shape[1] != 3:
        values = values.mean(axis=1, keepdims=True).repeat(3, axis=1)
    images = [image.transpose(1, 2, 0) for image in _unit(values)]
    seam = np.ones((x.shape[2], max(round(_SEAM * x.shape[3]), 1), 3))
    return np.concatenate([part for image in images for part in (seam, image)][1:], axis=1)


def _unit(values: Array) -> Array:
    """Pixels in [0, 1]: bytes are divided by 255, and values that were standardised are stretched back over the row."""
    low, high = float(values.min()), float(values.max())
    if 0 <= low and high <= 1:
        return values
    if 0 <= low and high <= 255 and high > 16:
        return values / 255
    return (values - low) / max(high - low, 1e-12)
