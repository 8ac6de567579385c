"""The public files behind the data sets: their checksums, where to download them, and how to read and verify them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require, unknown
from fedmm.core.files import data_folder, is_folder, parse_toml

NEEDED = {"mnist_m": ("mnist", "bsds500"), "usps": ("mnist", "usps")}
"""The sources of data sets that need more than the one of their own name."""
_CHECKSUMS = files("fedmm.data") / "checksums"
_LINE = re.compile(r"([0-9a-f]{64}) ([0-9]{1,15}) ([^\s/\\][^\\]*)")


@dataclass(frozen=True)
class StoredFile:
    """One file: its path below its source's folder, and its expected content.

    size: in bytes; None if unpublished.
    sha256: 64 hexadecimal digits, or only the first of them if no more were published; empty if none were.
    addresses: URLs that serve it, best first.
    """

    path: str
    size: int | None = None
    sha256: str = ""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Archive:
    """A tar archive to unpack into ``folder``, below its source's folder."""

    folder: str
    addresses: tuple[str, ...]

    @property
    def file(self) -> str:
        """The archive's file name."""
        return f"{self.folder}.tgz"


@dataclass(frozen=True)
class Edition:
    """One complete version of a source's files.

    note: how far its bytes can be trusted, if not every file has a published sha256.
    """

    name: str
    files: tuple[StoredFile, ...]
    archives: tuple[Archive, ...] = ()
    note: str = ""

    @property
    def public(self) -> bool:
        """Whether all of it can be downloaded from public addresses."""
        return bool(self.archives) or all(file.addresses for file in self.files)

    def below(self, folder: str) -> Edition:
        """Return the part of the edition that lies in a folder; all of it for an empty name."""
        return replace(
            self,
            files=tuple(file for file in self.files if file.path.startswith(f"{folder}/" if folder else "")),
            archives=tuple(archive for archive in self.archives if archive.folder == folder or not folder),
        )


@dataclass(frozen=True)
class Source:
    """Files of one origin, all below the folder ``name``.

    editions: any one of them is enough; mirrors serve the first.
    parts: folders, each of which may come from a different edition.
    """

    name: str
    summary: str
    licence: str
    citation: str
    editions: tuple[Edition, ...]
    parts: tuple[str, ...] = ()

    def folder(self, data_set: str) -> Path:
        """Return the source's folder in the data folder; if it is missing, raise an error that says how to get it."""
        folder = data_folder() / self.name
        require(
            is_folder(folder),
            f"there is no folder {folder}; get it with 'fedmm data fetch {data_set}', or name the folder that "
            f"holds {self.name} in FEDMM_DATA",
        )
        return folder

    def edition_in(self, folder: Path, part: str = "") -> Edition:
        """Return the edition, or its part, that is present in the source's folder."""
        return _edition_there([edition.below(part) for edition in self.editions], folder)


@cache
def sources() -> dict[str, Source]:
    """Return all sources by name, from ``checksums/sources.toml``."""
    tables = parse_toml((_CHECKSUMS / "sources.toml").read_bytes(), "sources.toml")
    return {name: _read_source(name, table) for name, table in tables.items()}


def sources_of(name: str) -> list[Source]:
    """Return the sources that a source's or a data set's name stands for."""
    known = sources()
    if name not in {*known, *NEEDED}:
        raise unknown("data", name, {*known, *NEEDED})
    return [known[source] for source in NEEDED.get(name, (name,))]


def _read_source(name: str, table: Mapping[str, Any]) -> Source:
    editions = tuple(_read_edition(name, edition) for edition in table["editions"])
    summary, licence, citation = (table[key] for key in ("summary", "licence", "citation"))
    return Source(name, summary, licence, citation, editions, tuple(table.get("parts", ())))


def _read_edition(source: str, table: Mapping[str, Any]) -> Edition:
    addresses, archives = table.get("addresses", ()), table.get("archives", {})
    if "files" in table:
        listed = [
            StoredFile(path, sha256=digits, addresses=tuple(base + path for base in addresses))
            for path, digits in table["files"].items()
        ]
    else:
        text = (_CHECKSUMS / f"{source}.sha256").read_text(encoding="utf-8")
        listed = read_checksums(text, addresses, f"{source}.sha256")
    if archives:  # no checksums of their contents were published
        listed = [StoredFile(file.path) for file in listed]
    packed = tuple(Archive(folder, (address,)) for folder, address in archives.items())
    return Edition(table["name"], tuple(listed), packed, table.get("note", ""))


def read_checksums(text: str, addresses: Iterable[str] = (), what: str = "the list of checksums") -> list[StoredFile]:
    """Parse lines of "sha256 size path"; the last part of each path completes the addresses."""
    bases = tuple(addresses)
    found: dict[str, StoredFile] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        parts = match[3].split("/") if match else [""]
        if not match or any(part in ("", ".", "..") for part in parts) or match[3] in found:
            raise FedmmError(f"{what}, line {number}, must be 'sha256 size path' with a new path below the folder")
        found[match[3]] = StoredFile(match[3], int(match[2]), match[1], tuple(base + parts[-1] for base in bases))
    return list(found.values())


def read_file(folder: Path, file: StoredFile) -> bytes:
    """Read a file in its source's folder; raise FedmmError if it is missing or its checksum is wrong."""
    path = folder / file.path
    try:
        require(not path.exists() or path.is_file(), f"{path} cannot be read to its end")
        content = path.read_bytes()
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror or problem}{describe_expected(file)}") from problem
    found = hashlib.sha256(content).hexdigest()
    require(
        found.startswith(file.sha256),
        f"{path} is truncated or corrupt: its sha256 is {found}, in {len(content)} bytes{describe_expected(file)}",
    )
    return content


def describe_expected(file: StoredFile) -> str:
    """Return the end of an error message: the sha256 and size that the file should have."""
    if not file.sha256:
        return ""
    must = "be" if len(file.sha256) == 64 else "begin with"
    size = "" if file.size is None else f", in {file.size} bytes"
    return f"; its sha256 must {must} {file.sha256}{size}"


def _edition_there(editions: Sequence[Edition], folder: Path) -> Edition:
    """Return the first edition of which files exist, at least half of them with the right size.

    Failing that, return the first of which any file exists; failing that, the first.
    """
    any_file = []
    for edition in editions:
        sizes = [(file.size, found) for file in edition.files if (found := size_of(folder / file.path)) is not None]
        right = sum(size in (None, found) for size, found in sizes)
        if sizes and 2 * right >= len(sizes):
            return edition
        any_file += [edition] if sizes else []
    return (any_file or editions)[0]


def size_of(path: Path) -> int | None:
    """Return a file's size in bytes; None if there is no such file."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
