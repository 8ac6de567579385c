"""What a public source of files is, and how its files are checked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmm.core.errors import FedmmError, require

_LINE = re.compile(r"([0-9a-f]{64}) ([0-9]{1,15}) ([^\s/\\][^\\]*)")


@dataclass(frozen=True)
class StoredFile:
    """One file: its path below its source's folder, and what its bytes must be.

    size: in bytes; None where nobody published it.
    sha256: 64 hexadecimal digits, or the beginning of them where no more was published; empty where nothing was.
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


@dataclass(frozen=True)
class Edition:
    """One complete form in which a source is found.

    note: how far its bytes can be trusted, where that is not plainly a sha256 for every file.
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
        """The part of it that lies in a folder."""
        return replace(
            self,
            files=tuple(file for file in self.files if file.path.startswith(f"{folder}/")),
            archives=tuple(archive for archive in self.archives if archive.folder == folder),
        )


@dataclass(frozen=True)
class Source:
    """Files of one origin, all below the folder ``name``.

    editions: any one of them will do; the first is the one a mirror serves.
    """

    name: str
    summary: str
    licence: str
    citation: str
    editions: tuple[Edition, ...]


def read_checksums(text: str, addresses: Iterable[str] = (), what: str = "the list of checksums") -> list[StoredFile]:
    """Files from lines of "sha256 size path"; each address is completed by the last part of the path."""
    bases = tuple(addresses)
    found: dict[str, StoredFile] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        parts = match[3].split("/") if match else [""]
        if not match or any(part in ("", ".", "..") for part in parts) or match[3] in found:
            raise FedmmError(f"{what}, line {number}, must be 'sha256 size path' with a new path below the folder")
        at = tuple(base + parts[-1] for base in bases)
        found[match[3]] = StoredFile(match[3], int(match[2]), match[1], at)
    return list(found.values())


def read_file(folder: Path, file: StoredFile) -> bytes:
    """The bytes of a file in its source's folder; one that is missing or has other bytes than it should is refused."""
    path = folder / file.path
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror or problem}{_expected(file)}") from problem
    found = hashlib.sha256(content).hexdigest()
    require(
        found.startswith(file.sha256),
        f"{path} is truncated or corrupt: its sha256 is {found}, in {len(content)} bytes{_expected(file)}",
    )
    return content


def _expected(file: StoredFile) -> str:
    """The end of a sentence on a file that is not as it should be."""
    if not file.sha256:
        return ""
    begins = "" if len(file.sha256) == 64 else "begin with "
    size = "" if file.size is None else f", in {file.size} bytes"
    return f"; its sha256 must {begins or 'be '}{file.sha256}{size}"


def edition_there(editions: Sequence[Edition], folder: Path) -> Edition:
    """The edition that lies in a source's folder: the first of which half the files are there with the right size.

    Failing that, the first of which there is any file; failing that, the first.
    """

    def there(file: StoredFile) -> bool:
        try:
            return file.size in (None, (folder / file.path).stat().st_size)
        except OSError:
            return False

    for edition in editions:
        if sum(map(there, edition.files)) * 2 >= len(edition.files):
            return edition
    return next((e for e in editions if any((folder / file.path).exists() for file in e.files)), editions[0])
