"""Whether a source's files are all there, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from fedmm.core.errors import FedmmError
from fedmm.data.readers.images import picture_of
from fedmm.data.sources import Edition, Source, StoredFile, read_file, size_of


class Holding(NamedTuple):
    """How much of a source, or of a part, is in the data folder, by names and sizes alone.

    files, wanted: files that are there, and that should be. bytes: of those that are there.
    """

    edition: Edition
    files: int
    wanted: int
    bytes: int


def holdings(source: Source, data_folder: Path) -> list[Holding]:
    """What is there of each of a source's parts."""
    folder = data_folder / source.name
    found = []
    for part in source.parts or ("",):
        edition = source.edition_in(folder, part)
        sizes = [(file.size, size_of(folder / file.path)) for file in edition.files]
        there = [found for size, found in sizes if found is not None and size in (None, found)]
        found.append(Holding(edition, len(there), len(edition.files), sum(there)))
    return found


def check(source: Source, data_folder: Path, seen: Callable[[], None] = lambda: None) -> dict[str, Edition]:
    """The editions in which a source's parts are there, by name; the first file that is not as it should be is refused.

    seen: called after each file.
    """
    folder = data_folder / source.name
    editions = {part_name(source, part): source.edition_in(folder, part) for part in source.parts or ("",)}
    for edition in editions.values():
        check_edition(edition, folder, seen)
    return editions


def part_name(source: Source, part: str) -> str:
    """What a part of a source is called."""
    return f"{source.name}/{part}" if part else source.name


def check_edition(edition: Edition, folder: Path, seen: Callable[[], None] = lambda: None) -> None:
    """Refuse the first file of an edition in a source's folder that is not as it should be."""
    problems = [problem for problem in _problems(edition, folder, seen) if problem]
    if problems:
        more = f" ({len(problems) - 1} more files are not as they should be)" if len(problems) > 1 else ""
        raise FedmmError(problems[0] + more)


def wrong_files(edition: Edition, folder: Path) -> tuple[StoredFile, ...]:
    """The files of an edition that are not in a source's folder as they should be."""
    problems = _problems(edition, folder, lambda: None)
    return tuple(file for file, problem in zip(edition.files, problems, strict=True) if problem)


def _problems(edition: Edition, folder: Path, seen: Callable[[], None]) -> list[str]:
    """For each file what is wrong with it, or nothing; without a checksum it must be a picture."""

    def problem_with(file: StoredFile) -> str:
        try:
            content = read_file(folder, file)
            if not file.sha256:
                picture_of(content, str(folder / file.path))
            return ""
        except FedmmError as problem:
            return str(problem)
        finally:
            seen()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(problem_with, edition.files))
