"""Pictures sorted into one folder for each class: two such domains, and a share of every class held out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.validation import at_least, within
from fedmm.data.domains import Labelled
from fedmm.data.labels import UNLABELLED
from fedmm.data.readers.images import read_squares, refuse_bad, squares
from fedmm.data.sources import StoredFile
from fedmm.data.splitting import held_out_rows

_OF_SYSTEMS = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}
"""Files that Windows and macOS leave in folders of pictures; those of others are hidden by a dot."""
_SHOWN = 5
"""Pictures that were skipped and are named."""
_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class ClassFolders:
    """Files ``.../class/picture`` below ``folder``; or, where classes are not known, pictures right in it."""

    folder: Path
    files: tuple[StoredFile, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Sorted; none where classes are not known."""
        return tuple(sorted({_class(file) for file in self.files} - {""}))

    def load(self, class_names: Sequence[str], size: int) -> Labelled:
        """All pictures as squares, uint8 ``[files, 3, size, size]``, labelled by the place of their class."""
        return Labelled(self.pictures(size), self.labels(class_names))

    def labels(self, class_names: Sequence[str]) -> Tensor:
        """The place of each file's class, int64 ``[files]``; -1 where it is not known."""
        number = {"": UNLABELLED} | {name: number for number, name in enumerate(class_names)}
        return torch.tensor([number[_class(file)] for file in self.files], dtype=torch.int64)

    def pictures(self, size: int) -> Tensor:
        """All pictures as squares, uint8 ``[files, 3, size, size]``."""
        return squares(self.folder, self.files, size)


class ReadFolders(NamedTuple):
    """The files that could be read, and their pictures as squares, uint8 ``[files, 3, size, size]``."""

    folders: ClassFolders
    x: Tensor


SKIP = "; mend or remove what is bad, or leave it out with data.skip_bad = true"


def read_folders(
    several: Iterable[ClassFolders], size: int, *, skip_bad: bool
) -> tuple[list[ReadFolders], tuple[str, ...]]:
    """The pictures of several folders, and what was left out of them, in words; without ``skip_bad`` nothing may be."""
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
    """A line on pictures that were left out, where there are any."""
    if not problems:
        return ()
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    many = "pictures were" if len(problems) > 1 else "picture was"
    return (f"{len(problems)} bad {many} skipped: {'; '.join(problems[:_SHOWN])}{more}",)


def _class(file: StoredFile) -> str:
    return Path(file.path).parent.name


def found_in(folder: Path) -> ClassFolders:
    """What lies in a folder: folders of pictures, or pictures. Hidden files, and what systems leave, are skipped.

    A file in a class's folder is taken for a picture whatever it is called; beside the classes' folders there may be
    files, but no pictures.
    """
    try:
        folders = [path for path in _shown(folder) if path.is_dir()]
        loose = [path for path in _shown(folder) if path.suffix.lower() in _SUFFIXES and not path.is_dir()]
        inside = {path: _shown(path) for path in folders}
    except OSError as problem:
        raise FedmmError(f"{folder} cannot be read as a folder of pictures: {problem.strerror}") from problem
    for path, pictures in inside.items():
        require(bool(pictures), f"the class folder {path} is empty; put pictures in it or remove it")
        for picture in pictures:
            require(
                not picture.is_dir(), f"{picture} is a folder inside a class's folder, which must hold pictures alone"
            )
    require(
        not (folders and loose), f"{loose[0] if loose else ''} lies beside the class folders; move it into one of them"
    )
    paths = loose or [picture for pictures in inside.values() for picture in pictures]
    require(bool(paths), f"{folder} holds neither class folders nor pictures")
    return ClassFolders(folder, tuple(StoredFile(path.relative_to(folder).as_posix()) for path in paths))


def folders_of_sites(folder: Path) -> dict[str, ClassFolders]:
    """What lies in the folder of each site, by its name."""
    try:
        paths = [path for path in _shown(folder) if path.is_dir()]
    except OSError as problem:
        raise FedmmError(f"{folder} cannot be read as a folder of sites: {problem.strerror}") from problem
    require(bool(paths), f"{folder} holds no folder of a site")
    return {path.name: found_in(path) for path in paths}


def _shown(folder: Path) -> list[Path]:
    """What is in a folder, neither hidden nor left there by a system, in order."""
    shown = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path for path in shown if path.name.lower() not in _OF_SYSTEMS)


def require_sizes(image_size: int, stored_size: int, held_out: float) -> None:
    """Refuse what no data set of pictures can do."""
    at_least("image_size", image_size, 1)
    at_least("stored_size", stored_size, 1)
    require(
        image_size <= stored_size <= 4096,
        f"stored_size must be between image_size = {image_size} and 4096, not {stored_size}",
    )
    within("held_out", held_out, 0.0, 1.0)
    require(0.0 < held_out < 1.0, f"held_out must be above 0 and below 1, not {held_out:g}")


def hold_out(rows: Labelled, share: float, seed: int) -> tuple[Labelled, Labelled]:
    """Rows to train on and rows held out, in their order: nearly the same share of every class.

    One row at least of each class is held out, and one at least is not; a class of one row is trained on.
    """
    out = held_out_rows(rows.y, share, (seed, "held_out"))
    require(bool(out.any()), "no picture of the source can be held out: every class has only one")
    return _chosen(rows, ~out), _chosen(rows, out)


def _chosen(rows: Labelled, which: Tensor) -> Labelled:
    return Labelled(rows.x[which], rows.y[which])
