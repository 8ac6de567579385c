"""Download a source's files to the data folder, and check which are present and correct.

Each file is verified before it gets its final name. Archives may hold anything; only the wanted files are unpacked.
"""

from __future__ import annotations

import lzma
import os
import shutil
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote

from fedmm.core.errors import FedmmError, require, unknown
from fedmm.data.http import RETRIES, Moved, Retries, download
from fedmm.data.readers.images import read_picture
from fedmm.data.sources import Archive, Edition, Source, StoredFile, read_file, size_of

_SIDE_BY_SIDE = 8
"""Parallel downloads: hundreds of small files are bound by latency, not by bandwidth."""
_LARGEST_PICTURE, _LARGEST_ARCHIVE = 100_000_000, 10_000_000_000
"""Limits in bytes, since a small archive can unpack to any size; no picture and no domain is larger."""

# Checking -------------------------------------------------------------------------------------------------------------


class FileCount(NamedTuple):
    """How much of a source, or of one of its parts, is in the data folder, judged by names and sizes alone.

    files, wanted: the number of files present, and of all its files. bytes: size of the files present.
    """

    edition: Edition
    files: int
    wanted: int
    bytes: int


def count_files(source: Source, data_folder: Path) -> list[FileCount]:
    """Count the files present for each of a source's parts."""
    folder = data_folder / source.name
    found = []
    for part in source.parts or ("",):
        edition = source.edition_in(folder, part)
        sizes = [(file.size, size_of(folder / file.path)) for file in edition.files]
        present = [found for size, found in sizes if found is not None and size in (None, found)]
        found.append(FileCount(edition, len(present), len(edition.files), sum(present)))
    return found


def check(source: Source, data_folder: Path, seen: Callable[[], None] = lambda: None) -> dict[str, Edition]:
    """Return the edition present of each of a source's parts, by name; raise FedmmError if a file is missing or wrong.

    seen: called after each file.
    """
    folder = data_folder / source.name
    editions = {part_name(source, part): source.edition_in(folder, part) for part in source.parts or ("",)}
    for edition in editions.values():
        check_edition(edition, folder, seen)
    return editions


def part_name(source: Source, part: str) -> str:
    """Return the full name of a source's part."""
    return f"{source.name}/{part}" if part else source.name


def check_edition(edition: Edition, folder: Path, seen: Callable[[], None] = lambda: None) -> None:
    """Raise FedmmError with the first missing or wrong file of an edition and the number of others."""
    problems = [problem for problem in _problems(edition, folder, seen) if problem]
    if problems:
        more = f" ({len(problems) - 1} more files are missing or wrong)" if len(problems) > 1 else ""
        raise FedmmError(problems[0] + more)


def wrong_files(edition: Edition, folder: Path) -> tuple[StoredFile, ...]:
    """Return the files of an edition that are missing or wrong in a source's folder."""
    problems = _problems(edition, folder, lambda: None)
    return tuple(file for file, problem in zip(edition.files, problems, strict=True) if problem)


def _problems(edition: Edition, folder: Path, seen: Callable[[], None]) -> list[str]:
    """Return what is wrong with each file, or an empty string; a file without a checksum must be a picture."""

    def problem_with(file: StoredFile) -> str:
        try:
            content = read_file(folder, file)
            if not file.sha256:
                read_picture(content, str(folder / file.path))
            return ""
        except FedmmError as problem:
            return str(problem)
        finally:
            seen()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(problem_with, edition.files))


# Fetching -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DownloadPlan:
    """What to download into a source's folder: the files, or the archives that contain them.

    name: of the source, or of the source and its part.
    """

    name: str
    folder: Path
    edition: Edition

    @property
    def bytes(self) -> int | None:
        """Total size of the files; None if any is unknown."""
        sizes = [file.size for file in self.edition.files if file.size is not None]
        return sum(sizes) if len(sizes) == len(self.edition.files) else None


def mirror() -> str:
    """Return the address in ``FEDMM_MIRROR``, a mirror of the data folder; empty if there is none."""
    address = os.environ.get("FEDMM_MIRROR", "")
    require(
        not address or address.startswith(("http://", "https://")),
        f"FEDMM_MIRROR must start with http:// or https://, not be {address!r}",
    )
    return address.rstrip("/")


def plans(source: Source, data_folder: Path, *, edition: str = "", mirror: str = "") -> list[DownloadPlan]:
    """Plan the downloads that complete a source.

    edition: which one; by default the one present, or the first public one if that has no public address.
    mirror: an address that serves the data folder, instead of the public ones.
    """
    named = {each.name: each for each in source.editions}
    if edition and edition not in named:
        raise unknown(f"edition of {source.name}", edition, named)
    folder = data_folder / source.name
    missing = []
    for part in source.parts or ("",):
        present = source.edition_in(folder, part)
        wanted = named[edition].below(part) if edition else present
        left = _list_missing(wanted, present, folder)
        if left and not (edition or mirror or wanted.public):
            wanted = next(edition for edition in source.editions if edition.public).below(part)
            left = _list_missing(wanted, present, folder)
        if left:
            missing.append(
                DownloadPlan(
                    part_name(source, part), folder, _use_mirror(replace(wanted, files=left), source.name, mirror)
                )
            )
    return missing


def _list_missing(wanted: Edition, present: Edition, folder: Path) -> tuple[StoredFile, ...]:
    """Return the files still to get: all of them if ``wanted`` is not the edition present and lacks checksums."""
    if wanted.name != present.name and not all(file.sha256 for file in wanted.files):
        return wanted.files
    return wrong_files(wanted, folder)


def _use_mirror(edition: Edition, name: str, mirror: str) -> Edition:
    """Point an edition to the mirror: single files, or archives called FOLDER.tgz."""
    if not mirror:
        return edition

    def at(path: str) -> tuple[str]:
        return (f"{mirror}/{quote(f'{name}/{path}')}",)

    return replace(
        edition,
        files=tuple(replace(file, addresses=at(file.path)) for file in edition.files),
        archives=tuple(replace(archive, addresses=at(archive.file)) for archive in edition.archives),
    )


def fetch(plan: DownloadPlan, moved: Moved = lambda count: None, retries: Retries = RETRIES) -> None:
    """Carry out a plan; raise FedmmError naming a file that cannot be downloaded or is wrong."""
    for file in plan.edition.files:
        if not (file.addresses or plan.edition.archives):
            raise FedmmError(
                f"{plan.folder / file.path} has no public address; name another edition, or a mirror in FEDMM_MIRROR"
            )
    for archive in plan.edition.archives:
        _fetch_archive(plan.folder, plan.edition, archive, moved, retries)
    if not plan.edition.archives:
        _fetch_files(plan.folder, plan.edition.files, moved, retries)


class _Stopped(Exception):  # noqa: N818 - reads as what happened
    """Another download failed, or the user pressed Ctrl-C."""


def _fetch_files(folder: Path, files: tuple[StoredFile, ...], moved: Moved, retries: Retries) -> None:
    stop = threading.Event()

    def moved_unless_stopped(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        moved(count)

    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        running = [pool.submit(download, folder, file, moved_unless_stopped, retries) for file in files]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            for future in running:
                future.cancel()
    for future in running:
        problem = None if future.cancelled() else future.exception()
        if problem is not None and not isinstance(problem, _Stopped):
            raise problem


def _fetch_archive(folder: Path, edition: Edition, archive: Archive, moved: Moved, retries: Retries) -> None:
    """Unpack into a temporary folder, verify, then move file by file; reuse an archive that is already there."""
    path = folder / archive.file
    ours = not path.exists()
    if ours:
        download(folder, StoredFile(archive.file, addresses=archive.addresses), moved, retries)
    wanted = edition.below(archive.folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as name:
            unpack(path, wanted.files, Path(name))
            check_edition(wanted, Path(name))
            for file in wanted.files:
                (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
                (Path(name) / file.path).replace(folder / file.path)
    except OSError as problem:
        raise FedmmError(f"{folder} cannot be written: {problem.strerror or problem}") from problem
    finally:
        if ours:
            path.unlink(missing_ok=True)


def unpack(archive: Path, files: Iterable[StoredFile], folder: Path) -> None:
    """Write the wanted files of an archive into a folder, matched by the last two parts of their paths, class and name.

    Raise FedmmError for links, devices, paths out of the folder, and archives that lack a file.
    """
    wanted = {PurePosixPath(file.path).parts[-2:]: file for file in files}
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                path = PurePosixPath(member.name)
                require(
                    not path.is_absolute() and ".." not in path.parts and (member.isfile() or member.isdir()),
                    f"{archive} is not unpacked: it holds {member.name!r}, which is a link or leads out of its folder",
                )
                end = member.offset_data + member.size
                require(
                    end <= _LARGEST_ARCHIVE, f"{archive} is not unpacked: it holds more than {_LARGEST_ARCHIVE} bytes"
                )
                file = wanted.get(path.parts[-2:]) if member.isfile() else None
                if file is not None:
                    require(member.size <= _LARGEST_PICTURE, f"{archive} is not unpacked: {member.name} is too large")
                    _write_member(opened, member, folder / file.path)
                    del wanted[path.parts[-2:]]
    except FedmmError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, MemoryError) as problem:
        raise FedmmError(f"{archive} is truncated or corrupt: {problem}") from problem
    except OSError as problem:
        raise FedmmError(f"{archive} cannot be unpacked into {folder}: {problem.strerror or problem}") from problem
    missing = [file.path for file in wanted.values()]
    require(not missing, f"{archive} lacks {len(missing)} files, the first of them {missing[0] if missing else ''}")


def _write_member(opened: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = opened.extractfile(member)
    assert content is not None  # it is a file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        shutil.copyfileobj(content, stream)
