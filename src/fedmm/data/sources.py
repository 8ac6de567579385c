"""The public files behind the data sets: what each must be, where it can be had, and how it is read and checked."""

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
"""The sources of a data set that needs more than the source of its name."""
_CHECKSUMS = files("fedmm.data") / "checksums"
_LINE = re.compile(r"([0-9a-f]{64}) ([0-9]{1,15}) ([^\s/\\][^\\]*)")


@dataclass(frozen=True)
class StoredFile:
    """One file: its path below its source's folder, and what its bytes must be.

    size: in bytes; None if nobody published it.
    sha256: 64 hexadecimal digits, or the beginning of them where no more was published; empty if nothing was.
    addresses: where it can be had, best first.
    """

    path: str
    size: int | None = None
    sha256: str = ""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Archive:
    """A tar archive that is unpacked into ``folder``, below its source's folder."""

    folder: str
    addresses: tuple[str, ...]

    @property
    def file(self) -> str:
        """Its name."""
        return f"{self.folder}.tgz"


@dataclass(frozen=True)
class Edition:
    """One complete form in which a source is found.

    note: how far its bytes can be trusted, if that is not plainly a sha256 for every file.
    """

    name: str
    files: tuple[StoredFile, ...]
    archives: tuple[Archive, ...] = ()
    note: str = ""

    @property
    def public(self) -> bool:
        """Whether there is a public address for all of it."""
        return bool(self.archives) or all(file.addresses for file in self.files)

    def below(self, folder: str) -> Edition:
        """The part of it that lies in a folder; all of it for an empty name."""
        return replace(
            self,
            files=tuple(file for file in self.files if file.path.startswith(f"{folder}/" if folder else "")),
            archives=tuple(archive for archive in self.archives if archive.folder == folder or not folder),
        )


@dataclass(frozen=True)
class Source:
    """Files of one origin, all below the folder ``name``.

    editions: any one of them will do; the first is the one a mirror serves.
    parts: folders that may be of one edition each.
    """

    name: str
    summary: str
    licence: str
    citation: str
    editions: tuple[Edition, ...]
    parts: tuple[str, ...] = ()

    def folder(self, data_set: str) -> Path:
        """Its folder in the data folder; if there is none, how to get it for a data set."""
        folder = data_folder() / self.name
        require(
            is_folder(folder),
            f"there is no folder {folder}; get it with 'fedmm data fetch {data_set}', or name the folder that "
            f"holds {self.name} in FEDMM_DATA",
        )
        return folder

    def edition_in(self, folder: Path, part: str = "") -> Edition:
        """The edition, or its part, that lies in the source's folder."""
        return _edition_there([edition.below(part) for edition in self.editions], folder)


@cache
def sources() -> dict[str, Source]:
    """All sources by name, from ``checksums/sources.toml``."""
    tables = parse_toml((_CHECKSUMS / "sources.toml").read_bytes(), "sources.toml")
    return {name: _read_source(name, table) for name, table in tables.items()}


def sources_of(name: str) -> list[Source]:
    """The sources that a source's or a data set's name stands for."""
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
    if archives:  # nobody published checksums of what is in them
        listed = [StoredFile(file.path) for file in listed]
    packed = tuple(Archive(folder, (address,)) for folder, address in archives.items())
    return Edition(table["name"], tuple(listed), packed, table.get("note", ""))


def read_checksums(text: str, addresses: Iterable[str] = (), what: str = "the list of checksums") -> list[StoredFile]:
    """Files from lines of "sha256 size path"; each address is completed by the last part of the path."""
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
    """The bytes of a file in its source's folder; one that is missing or has other bytes than it should is refused."""
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
    """What a file must be, as the end of a sentence on one that is not."""
    if not file.sha256:
        return ""
    must = "be" if len(file.sha256) == 64 else "begin with"
    size = "" if file.size is None else f", in {file.size} bytes"
    return f"; its sha256 must {must} {file.sha256}{size}"


def _edition_there(editions: Sequence[Edition], folder: Path) -> Edition:
    """The first edition of whose files some are there, half of these or more with the right size.

    Failing that, the first of which there is any file; failing that, the first.
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
    """The size of a file in bytes, or None if there is none."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
