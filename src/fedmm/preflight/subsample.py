"""A part of a large data set, so that looking at it takes seconds."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedmm.core.errors import FedmmError
from fedmm.data.class_folders import folders_of_sites, found_in
from fedmm.data.datasets.image_folder import ImageFolder
from fedmm.data.domains import DataSet

_FOLDERS = ("source", "target", "target_test")
_FEWEST = 3
"""Pictures of a class that are looked at, where there are so many."""


class Part(NamedTuple):
    """A data set of some of the files, and how many of how many they are."""

    data: DataSet
    files: int
    of: int


@contextmanager
def part_of(data: DataSet, most: int) -> Iterator[Part]:
    """The data set itself or, where it has more than ``most`` pictures in folders, one of evenly spread ones.

    The files of the part are links in a folder that is gone afterwards.
    """
    if not isinstance(data, ImageFolder):
        yield Part(data, 0, 0)
        return
    found = _pictures(data)
    total = sum(len(files) for groups in found.values() for files in groups.values())
    if total <= most:
        yield Part(data, total, total)
        return
    with tempfile.TemporaryDirectory(prefix="fedmm-check-") as folder:
        kept = 0
        for option, groups in found.items():
            root = Path(str(getattr(data, option))).expanduser().resolve()
            for files in groups.values():
                count = min(len(files), max(_FEWEST, len(files) * most // total))
                chosen = [files[number * len(files) // count] for number in range(count)]
                kept += count
                for file in chosen:
                    link = Path(folder) / option / file
                    link.parent.mkdir(parents=True, exist_ok=True)
                    try:
                        link.symlink_to(root / file)
                    except OSError as problem:
                        raise FedmmError(
                            f"links to pictures cannot be made in {folder}: {problem.strerror}"
                        ) from problem
        linked: dict[str, Any] = {option: str(Path(folder) / option) for option in found}
        yield Part(replace(data, **linked), kept, total)


def _pictures(data: ImageFolder) -> dict[str, dict[Path, list[Path]]]:
    """The files below each folder that the options name, by the folder they are in."""
    found: dict[str, dict[Path, list[Path]]] = {}
    for option in (*_FOLDERS, "sites"):
        given = str(getattr(data, option))
        if not given:
            continue
        root = Path(given).expanduser()
        places = folders_of_sites(root) if option == "sites" else {"": found_in(root)}
        groups: dict[Path, list[Path]] = defaultdict(list)
        for site, folders in places.items():
            for file in folders.files:
                path = Path(site) / file.path
                groups[path.parent].append(path)
        found[option] = groups
    return found
