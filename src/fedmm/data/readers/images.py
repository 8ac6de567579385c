"""Pictures from files, as squares of bytes."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
_IN_MEMORY = re.compile(r"<[\w.]*BytesIO object at 0x[0-9a-fA-F]+>")
_SHOWN = 20
"""Bad pictures that are named in one sentence."""
_KEPT = 3
"""Folders of squares that stay in memory, since tasks share domains: Office-31 has three."""


def picture_of(content: bytes, what: str) -> Picture:
    """The picture in a file's bytes, of any kind, as upright red, green and blue; what is clear becomes white."""
    from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415 - slow to import, and only pictures need it

    require(bool(content), f"{what} cannot be read as a picture: the file is empty")
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
    except UnidentifiedImageError as problem:  # its own words name an object in memory
        raise FedmmError(f"{what} cannot be read as a picture: it is none of {', '.join(_FORMATS)}") from problem
    except Exception as problem:  # a file that is not what it seems may be any problem to its decoder
        raise FedmmError(f"{what} cannot be read as a picture: {_IN_MEMORY.sub('the file', str(problem))}") from problem


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


class Squares(NamedTuple):
    """Pictures as squares, uint8 ``[read, 3, size, size]``. read: their places among the files.

    problems: a sentence for each file that could not be read.
    """

    x: Tensor
    read: tuple[int, ...]
    problems: tuple[str, ...]


def squares(folder: Path, files: Sequence[StoredFile], size: int) -> Tensor:
    """Pictures as squares: uint8 ``[files, 3, size, size]``. Files that cannot be read are refused by name."""
    found = read_squares(folder, files, size)
    refuse_bad(found.problems)
    return found.x


def read_squares(folder: Path, files: Sequence[StoredFile], size: int) -> Squares:
    """Those of the pictures that can be read."""
    return _squares(folder, tuple(files), tuple(_stamp(folder / file.path) for file in files), size)


def refuse_bad(problems: Sequence[str], advice: str = "") -> None:
    """Refuse pictures that could not be read, all in one sentence. advice: what could be done about it."""
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    many = f"{len(problems)} pictures are bad: " if len(problems) > 1 else ""
    require(not problems, f"{many}{'; '.join(problems[:_SHOWN])}{more}{advice}")


@lru_cache(maxsize=_KEPT)
def _squares(folder: Path, files: tuple[StoredFile, ...], stamps: tuple[object, ...], size: int) -> Squares:
    """``stamps`` are there so that files that changed are read again."""
    found = np.empty((len(files), 3, size, size), np.uint8)

    def problem_with(number: int) -> str:
        file = files[number]
        path = folder / file.path
        with suppress(OSError, RuntimeError):  # a link that leads to itself
            path = path.resolve() if path.is_symlink() else path
        try:
            whole = picture_of(read_file(folder, file), str(path))
        except FedmmError as problem:
            return str(problem)
        try:
            found[number] = np.asarray(square_of(whole, size)).transpose(2, 0, 1)
        except FedmmError as problem:
            return f"{path} cannot be used: {problem}"
        return ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding lets go of the interpreter's lock
        try:
            problems = list(pool.map(problem_with, range(len(files))))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    read = tuple(number for number, problem in enumerate(problems) if not problem)
    x = torch.from_numpy(found if len(read) == len(files) else found[list(read)])
    return Squares(x, read, tuple(filter(None, problems)))


def _stamp(path: Path) -> object:
    """What changes when a file does."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
