"""A source's files into the data folder: each is skipped where it is right, and checked before it gets its name."""

from __future__ import annotations

import os
import tempfile
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from fedmm.core.errors import FedmmError, require, unknown
from fedmm.data.download.http import PATIENT, Moved, Patience, download
from fedmm.data.download.verify import check_edition, part_name, wrong_files
from fedmm.data.readers.archives import unpack
from fedmm.data.sources import Archive, Edition, Source, StoredFile

_SIDE_BY_SIDE = 8
"""Downloads at a time: hundreds of small files wait for answers, not for bytes."""


@dataclass(frozen=True)
class Plan:
    """What has to be fetched into a source's folder: the files, or the archives they are in.

    name: of the source, or of the source and its part.
    """

    name: str
    folder: Path
    edition: Edition

    @property
    def bytes(self) -> int | None:
        """To fetch, where that is known."""
        sizes = [file.size for file in self.edition.files if file.size is not None]
        return sum(sizes) if len(sizes) == len(self.edition.files) else None


def mirror() -> str:
    """The address of the user's own mirror, ``FEDMM_MIRROR``, which serves the data folder; empty without one."""
    address = os.environ.get("FEDMM_MIRROR", "")
    require(
        not address or address.startswith(("http://", "https://")),
        f"FEDMM_MIRROR must begin with http:// or https://, not be {address!r}",
    )
    return address.rstrip("/")


def plans(source: Source, data_folder: Path, *, edition: str = "", mirror: str = "") -> list[Plan]:
    """What has to be fetched so that all of a source is there and right.

    edition: which one; by default the one that is there, else the first that can be had.
    mirror: an address that serves the data folder, in place of the public ones.
    """
    named = {each.name: each for each in source.editions}
    if edition and edition not in named:
        raise unknown(f"edition of {source.name}", edition, named)
    folder = data_folder / source.name
    found = []
    for part in source.parts or ("",):
        there = source.edition_in(folder, part)
        wanted = named[edition].below(part) if edition else there
        left = _left(wanted, there, folder)
        if left and not (edition or mirror or wanted.public):
            wanted = next(each for each in source.editions if each.public).below(part)
            left = _left(wanted, there, folder)
        if left:
            found.append(
                Plan(part_name(source, part), folder, _mirrored(replace(wanted, files=left), source.name, mirror))
            )
    return found


def _left(wanted: Edition, there: Edition, folder: Path) -> tuple[StoredFile, ...]:
    """The files that are not right yet; without checksums, those of another edition would look right."""
    if wanted.name != there.name and not all(file.sha256 for file in wanted.files):
        return wanted.files
    return wrong_files(wanted, folder)


def _mirrored(edition: Edition, name: str, mirror: str) -> Edition:
    """The edition as the mirror serves it: single files, or archives called FOLDER.tgz."""
    if not mirror:
        return edition

    def at(path: str) -> tuple[str]:
        return (f"{mirror}/{quote(f'{name}/{path}')}",)

    return replace(
        edition,
        files=tuple(replace(file, addresses=at(file.path)) for file in edition.files),
        archives=tuple(replace(archive, addresses=at(archive.file)) for archive in edition.archives),
    )


def fetch(plan: Plan, moved: Moved = lambda count: None, patience: Patience = PATIENT) -> None:
    """Carry out a plan; what cannot be had, or is not what it should be, is refused by name."""
    for file in plan.edition.files:
        if not (file.addresses or plan.edition.archives):
            raise FedmmError(
                f"{plan.folder / file.path} has no public address; name another edition, or a mirror in FEDMM_MIRROR"
            )
    for archive in plan.edition.archives:
        _fetch_archive(plan.folder, plan.edition, archive, moved, patience)
    if not plan.edition.archives:
        _fetch_files(plan.folder, plan.edition.files, moved, patience)


class _Stopped(Exception):  # noqa: N818 - reads as what happened
    """Another download failed, or Ctrl-C."""


def _fetch_files(folder: Path, files: tuple[StoredFile, ...], moved: Moved, patience: Patience) -> None:
    stop = threading.Event()

    def moved_unless_stopped(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        moved(count)

    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        running = [pool.submit(download, folder, file, moved_unless_stopped, patience) for file in files]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            for each in running:
                each.cancel()
    for each in running:
        problem = None if each.cancelled() else each.exception()
        if problem is not None and not isinstance(problem, _Stopped):
            raise problem


def _fetch_archive(folder: Path, edition: Edition, archive: Archive, moved: Moved, patience: Patience) -> None:
    """Unpack beside the real names, check, then move file by file; an archive that is there already is used."""
    path = folder / archive.file
    ours = not path.exists()
    if ours:
        download(folder, StoredFile(archive.file, addresses=archive.addresses), moved, patience)
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
