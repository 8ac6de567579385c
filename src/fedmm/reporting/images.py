"""Images in rows: a few of both domains of a run, and sheets of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import SubFigure

from fedmm.reporting.read import Array, Samples
from fedmm.reporting.style import FAINT, SMALL, WIDTH, Strip, compose

_FEWEST, _MOST = 8, 12
"""Images of a run in a row: more than _MOST are left out. Fewer than _FEWEST do not grow."""
_PITCH = 1.06
"""From one image to the next, in widths of an image."""
_TINY = 16
"""Pixels on a side below which single pixels would hide what the image shows, so that it is smoothed."""
_LETTER = 0.58
"""The width of a letter, in sizes of the font, by which captions are shrunk to their column."""


class Block(NamedTuple):
    """Samples of one domain: images ``[rows, columns, C, H, W]``, and what stands below each column, or nothing."""

    heading: str
    images: Array
    captions: Sequence[str]


def draw_sheet(path: Path, title: str, about: str, blocks: Sequence[Block]) -> Path:
    """Write a picture of the blocks below each other."""
    return compose(title, about, [_block_strip(block) for block in blocks], path)


def image_strips(samples: Samples) -> list[Strip]:
    """A row of the source site's images with their classes, and one of the target site's without."""
    classes = [str(label) for label in samples.source_y[:_MOST].tolist()]
    source = Block("source site (labelled)", samples.source_x[None, :_MOST], classes)
    target = Block("target site (unlabelled)", samples.target_x[None, :_MOST], [])
    return [_block_strip(block) for block in (source, target) if block.images.size]


def _block_strip(block: Block) -> Strip:
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
