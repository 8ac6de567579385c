"""What a public source of files is, and how its files are checked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
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


def require_file(folder: Path, file: StoredFile) -> Path:
    """The path of a file in its source's folder; one that is missing or has other bytes than it should is refused."""
    path = folder / file.path
    found = digest(path)
    require(
        found.startswith(file.sha256),
        f"{path} is truncated or corrupt: its sha256 must be {file.sha256} and is {found}; fetch it again",
    )
    return path


def digest(path: Path) -> str:
    """The sha256 of a file that must be there."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror or problem}") from problem
