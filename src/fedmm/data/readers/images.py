"""Read pictures as squares of bytes, from folders that hold one folder of pictures per class."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.data.labels import UNLABELLED
from fedmm.data.sources import StoredFile, read_file

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_OF_SYSTEMS = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}
"""Files that Windows and macOS leave in folders of pictures; those of other systems start with a dot."""
SKIP = "; fix or remove these files, or skip them with data.skip_bad = true"
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Other formats may run programs, or are not raster pictures."""
_MOST_PIXELS = 89_000_000
_LONGEST = 200
"""Largest aspect ratio: the whole picture is resized before its centre is cropped."""
_IN_MEMORY = re.compile(r"<[\w.]*BytesIO object at 0x[0-9a-fA-F]+>")
_MOST_BAD, _MOST_SKIPPED = 20, 5
"""How many bad pictures an error lists, and how many a note on skipped ones lists."""
_KEPT = 3
"""Folders of squares to cache, since tasks share domains: Office-31 has three."""


def read_picture(content: bytes, what: str) -> Picture:
    """Decode a picture as upright RGB; transparent pixels become white."""
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
    except UnidentifiedImageError as problem:  # its own message names an object in memory
        raise FedmmError(
            f"{what} cannot be read as a picture: it is in none of the formats {', '.join(_FORMATS)}"
        ) from problem
    except Exception as problem:  # decoders may raise anything on a malformed file
        raise FedmmError(f"{what} cannot be read as a picture: {_IN_MEMORY.sub('the file', str(problem))}") from problem


def square_of(picture: Picture, size: int) -> Picture:
    """Resize a picture so that its shorter side is ``size`` pixels, and crop the centre square."""
    from PIL.Image import Resampling  # noqa: PLC0415 - slow to import, and only pictures need it

    short, long = sorted(picture.size)
    require(long <= _LONGEST * short, f"one side of a picture must be at most {_LONGEST} times the other")
    if short != size:
        width, height = (round(side * size / short) for side in picture.size)
        picture = picture.resize((width, height), Resampling.BICUBIC)
    left, top = ((side - size) // 2 for side in picture.size)
    return picture.crop((left, top, left + size, top + size))


class Squares(NamedTuple):
    """Pictures as squares, uint8 ``[read, 3, size, size]``. read: their indices among the files.

    problems: a sentence for each file that could not be read.
    """

    x: Tensor
    read: tuple[int, ...]
    problems: tuple[str, ...]


def squares(folder: Path, files: Sequence[StoredFile], size: int) -> Tensor:
    """Read pictures as squares, uint8 ``[files, 3, size, size]``; raise FedmmError naming files that cannot be read."""
    found = read_squares(folder, files, size)
    refuse_bad(found.problems)
    return found.x


def read_squares(folder: Path, files: Sequence[StoredFile], size: int) -> Squares:
    """Read as squares those pictures that can be read."""
    return _squares(folder, tuple(files), tuple(_stamp(folder / file.path) for file in files), size)


def refuse_bad(problems: Sequence[str], advice: str = "") -> None:
    """Raise one FedmmError for all pictures that could not be read. advice: what the user could do."""
    more = f"; and {len(problems) - _MOST_BAD} more" if len(problems) > _MOST_BAD else ""
    many = f"{len(problems)} pictures are bad: " if len(problems) > 1 else ""
    require(not problems, f"{many}{'; '.join(problems[:_MOST_BAD])}{more}{advice}")


@lru_cache(maxsize=_KEPT)
def _squares(folder: Path, files: tuple[StoredFile, ...], stamps: tuple[object, ...], size: int) -> Squares:
    """Read the squares and cache them; ``stamps`` are arguments so that files that changed are read again."""
    found = np.empty((len(files), 3, size, size), np.uint8)

    def problem_with(number: int) -> str:
        file = files[number]
        path = folder / file.path
        with suppress(OSError, RuntimeError):  # a link that leads to itself
            path = path.resolve() if path.is_symlink() else path
        try:
            whole = read_picture(read_file(folder, file), str(path))
        except FedmmError as problem:
            return str(problem)
        try:
            found[number] = np.asarray(square_of(whole, size)).transpose(2, 0, 1)
        except FedmmError as problem:
            return f"{path} cannot be used: {problem}"
        return ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding releases the GIL
        try:
            problems = list(pool.map(problem_with, range(len(files))))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    read = tuple(number for number, problem in enumerate(problems) if not problem)
    x = torch.from_numpy(found if len(read) == len(files) else found[list(read)])
    return Squares(x, read, tuple(filter(None, problems)))


def _stamp(path: Path) -> object:
    """Return what changes whenever the file does."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@dataclass(frozen=True)
class ClassFolders:
    """Files ``.../class/picture`` below ``folder``; or pictures directly in it, if classes are unknown."""

    folder: Path
    files: tuple[StoredFile, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Sorted class names; empty if classes are unknown."""
        return tuple(sorted({_class(file) for file in self.files} - {""}))

    def labels(self, class_names: Sequence[str]) -> Tensor:
        """Return each file's class index, int64 ``[files]``; -1 if unknown."""
        number = {"": UNLABELLED} | {name: number for number, name in enumerate(class_names)}
        return torch.tensor([number[_class(file)] for file in self.files], dtype=torch.int64)

    def pictures(self, size: int) -> Tensor:
        """Read all pictures as squares, uint8 ``[files, 3, size, size]``."""
        return squares(self.folder, self.files, size)


class ReadFolders(NamedTuple):
    """The files that could be read, and their pictures as squares, uint8 ``[files, 3, size, size]``."""

    folders: ClassFolders
    x: Tensor


def read_folders(
    several: Iterable[ClassFolders], size: int, *, skip_bad: bool
) -> tuple[list[ReadFolders], tuple[str, ...]]:
    """Read the pictures of several folders; also return a note on bad ones, an error without ``skip_bad``."""
    found, problems = [], list[str]()
    for folders in several:
        x, read, bad = read_squares(folders.folder, folders.files, size)
        left = replace(folders, files=tuple(folders.files[place] for place in read))
        found.append(ReadFolders(left, x))
        problems += bad
        for name in (set(map(_class, folders.files)) - set(map(_class, left.files))) if skip_bad else ():
            raise FedmmError(f"no picture in {folders.folder / name} can be read: {bad[0]}")
    if not skip_bad:
        refuse_bad(problems, SKIP)
    return found, skipped_note(problems)


def skipped_note(problems: Sequence[str]) -> tuple[str, ...]:
    """Return a note on pictures that were skipped, if there are any."""
    if not problems:
        return ()
    more = f"; and {len(problems) - _MOST_SKIPPED} more" if len(problems) > _MOST_SKIPPED else ""
    many = "pictures were" if len(problems) > 1 else "picture was"
    return (f"{len(problems)} bad {many} skipped: {'; '.join(problems[:_MOST_SKIPPED])}{more}",)


def _class(file: StoredFile) -> str:
    return Path(file.path).parent.name


def found_in(folder: Path) -> ClassFolders:
    """List a folder's class folders, or its pictures; skip hidden files and those that systems leave.

    Every file in a class folder is taken for a picture, whatever its name; pictures beside the class folders are an
    error, other files there are ignored.
    """
    try:
        folders = [path for path in _list_visible(folder) if path.is_dir()]
        loose = [path for path in _list_visible(folder) if path.suffix.lower() in _SUFFIXES and not path.is_dir()]
        inside = {path: _list_visible(path) for path in folders}
    except OSError as problem:
        raise FedmmError(f"{folder} cannot be read as a folder of pictures: {problem.strerror}") from problem
    for path, pictures in inside.items():
        require(bool(pictures), f"the class folder {path} is empty; put pictures in it or remove it")
        for picture in pictures:
            require(
                not picture.is_dir(), f"{picture} is a folder inside a class's folder, which must hold only pictures"
            )
    require(
        not (folders and loose), f"{loose[0] if loose else ''} is beside the class folders; move it into one of them"
    )
    paths = loose or [picture for pictures in inside.values() for picture in pictures]
    require(bool(paths), f"{folder} holds neither class folders nor pictures")
    return ClassFolders(folder, tuple(StoredFile(path.relative_to(folder).as_posix()) for path in paths))


def folders_of_sites(folder: Path) -> dict[str, ClassFolders]:
    """List each site's folder as :func:`found_in` does, by site name."""
    try:
        paths = [path for path in _list_visible(folder) if path.is_dir()]
    except OSError as problem:
        raise FedmmError(f"{folder} cannot be read as a folder of sites: {problem.strerror}") from problem
    require(bool(paths), f"{folder} has no folder of any site")
    return {path.name: found_in(path) for path in paths}


def _list_visible(folder: Path) -> list[Path]:
    """List a folder in order, without hidden files and those that systems leave."""
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path for path in shown if path.name.lower() not in _OF_SYSTEMS)
