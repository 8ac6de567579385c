"""Pictures from files, as squares of bytes."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.data.sources import StoredFile, read_file

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Others run programs, or are no pictures of pixels."""
_MOST_PIXELS = 89_000_000
_LONGEST = 200
"""How many times its shorter side the longer may be: all of a picture is resized before its middle is cut out."""
_KEPT = 3
"""Folders of squares that stay in memory, since tasks share domains: Office-31 has three."""


def picture_of(content: bytes, what: str) -> Picture:
    """The picture in a file's bytes, of any kind, as upright red, green and blue; what is clear becomes white."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - slow to import, and only pictures need it

    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as opened:
            require(math.prod(opened.size) <= _MOST_PIXELS, f"it has more than {_MOST_PIXELS} pixels")
            picture = ImageOps.exif_transpose(opened)
            if picture.mode.startswith("I"):
                picture = Image.fromarray((np.asarray(picture).clip(0, 65535) >> 8).astype(np.uint8))
            if picture.has_transparency_data:
                picture = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
            return picture.convert("RGB")
    except Exception as problem:  # a file that is not what it seems may be any problem to its decoder
        raise FedmmError(f"{what} cannot be read as a picture: {problem}") from problem


def square_of(picture: Picture, size: int) -> Picture:
    """The square in the middle of a picture whose shorter side was brought to ``size`` pixels."""
    from PIL.Image import Resampling  # noqa: PLC0415 - slow to import, and only pictures need it

    short, long = sorted(picture.size)
    require(long <= _LONGEST * short, f"one side of a picture must be at most {_LONGEST} times the other")
    if short != size:
        width, height = (round(side * size / short) for side in picture.size)
        picture = picture.resize((width, height), Resampling.BICUBIC)
    left, top = ((side - size) // 2 for side in picture.size)
    return picture.crop((left, top, left + size, top + size))


def squares(folder: Path, files: Sequence[StoredFile], size: int) -> Tensor:
    """Pictures as squares: uint8 ``[files, 3, size, size]``. A file that cannot be read is refused by name."""
    return _squares(folder, tuple(files), tuple(_stamp(folder / file.path) for file in files), size)


@lru_cache(maxsize=_KEPT)
def _squares(folder: Path, files: tuple[StoredFile, ...], stamps: tuple[object, ...], size: int) -> Tensor:
    """``stamps`` are there so that files that changed are read again."""
    found = np.empty((len(files), 3, size, size), np.uint8)

    def read(number: int) -> None:
        file = files[number]
        path = folder / file.path
        whole = picture_of(read_file(folder, file), str(path))
        try:
            picture = square_of(whole, size)
        except FedmmError as problem:
            raise FedmmError(f"{path} cannot be used: {problem}") from problem
        found[number] = np.asarray(picture).transpose(2, 0, 1)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding lets go of the interpreter's lock
        try:
            list(pool.map(read, range(len(files))))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return torch.from_numpy(found)


def _stamp(path: Path) -> object:
    """What changes when a file does."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
