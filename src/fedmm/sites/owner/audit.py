"""A site's audit log: one JSON object a line, each with the hash of the line before it. Needs no torch.

Lines are only appended. Changing, removing or moving one breaks the chain from there on. Cutting lines off at the end
does not, so the head (the last hash) must be noted elsewhere to detect that.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError
from fedmm.core.files import sync_path

FIRST = "0" * 64
"""The hash before the first line."""

Entry = Mapping[str, Any]


class BrokenChain(FedmmError):  # noqa: N818 - reads as what is the matter
    """A line does not follow from the one before it."""

    def __init__(self, path: Path, number: int, reason: str) -> None:
        super().__init__(f"the audit log {path} is broken at entry {number}: {reason}")
        self.number = number


@dataclass(frozen=True)
class AuditChain:
    """How far a log was read.

    entries: how many. head: the last hash. size: their bytes. fragment: bytes after them that lack a line end.
    """

    entries: int = 0
    head: str = FIRST
    size: int = 0
    fragment: bytes = b""


_EMPTY = AuditChain()


def read_chain(
    path: Path, take: Callable[[Entry], None] = lambda entry: None, begin: AuditChain = _EMPTY
) -> AuditChain:
    """Read a log from where it was read to before, and check every line. take: called with each valid entry.

    A last line without its end, as a crash leaves it, is not an entry; it is returned as the chain's ``fragment``.
    """
    number, head, size = begin.entries, begin.head, begin.size
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            if file.tell() < size:
                raise BrokenChain(path, number, "the file became shorter while it was in use")
            file.seek(size)
            for line in file:
                if not line.endswith(b"\n"):
                    return AuditChain(number, head, size, line)
                number += 1
                entry = _check_line(path, number, head, line)
                take(entry)
                head, size = entry["hash"], size + len(line)
    except FileNotFoundError:
        if begin.entries:
            raise BrokenChain(path, number, "the file was removed while it was in use") from None
    except OSError as problem:
        raise FedmmError(f"the audit log {path} cannot be read: {problem.strerror}") from problem
    return AuditChain(number, head, size)


def _check_line(path: Path, number: int, head: str, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise BrokenChain(path, number, "it is not valid JSON") from None
    if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
        raise BrokenChain(path, number, "it is not an entry of an audit log")
    if entry.get("previous") != head or entry.get("number") != number:
        raise BrokenChain(path, number, "it does not follow from the entry before it")
    if entry.pop("hash", None) != (own := _hash(entry)) or _line({**entry, "hash": own}) != line:
        raise BrokenChain(path, number, "it was changed: its hash is not that of what it says")
    return {**entry, "hash": own}


def _hash(entry: Entry) -> str:
    return hashlib.sha256(_canonical(entry)).hexdigest()


def _canonical(entry: Entry) -> bytes:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _line(entry: Entry) -> bytes:
    return json.dumps(entry, ensure_ascii=True).encode("ascii") + b"\n"


class AuditLog:
    """A site's log, for appending; take: called with every entry, including those of other processes."""

    def __init__(self, path: Path, take: Callable[[Entry], None] = lambda entry: None) -> None:
        self.path = path
        self._take = take
        self._chain = AuditChain()
        self._number: int | None = None

    @property
    def head(self) -> str:
        """The hash of the last entry that was read or written."""
        return self._chain.head

    @property
    def size(self) -> int:
        """The bytes of all entries that were read or written."""
        return self._chain.size

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the log for appending, after reading what others appended.

        A partial line left by a crash is cut off, which is logged as an entry too.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as problem:
            raise FedmmError(f"the audit log {self.path} cannot be written: {problem.strerror}") from problem
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            added: list[Entry] = []
            self._chain = read_chain(self.path, added.append, self._chain)
            for entry in added:
                self._take(entry)
            self._number = number
            if lost := self._chain.fragment:
                os.ftruncate(number, self._chain.size)
                self.add("mended", bytes=len(lost), sha256=hashlib.sha256(lost).hexdigest())
            yield
        finally:
            self._number = None
            os.close(number)

    def add(self, event: str, *, sync: bool = True, **fields: Any) -> None:
        """Append an entry, within ``alone``; with ``sync``, it and all before it are on disk when this returns."""
        assert self._number is not None, "only one process may add entries"
        number, chain = self._number, self._chain
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = {"number": chain.entries + 1, "time": stamp, "event": event, **fields, "previous": chain.head}
        entry = json.loads(_canonical(entry))  # as it will be read
        entry["hash"] = _hash(entry)
        line = _line(entry)
        try:
            written = os.write(number, line)
            if written < len(line):
                raise OSError(0, "the disk took a part of the line")
            if sync:
                os.fsync(number)
                if not chain.entries:
                    sync_path(self.path.parent)  # otherwise a crash could lose the new file
        except OSError as problem:
            os.ftruncate(number, chain.size)
            raise FedmmError(f"the audit log {self.path} cannot be written: {problem.strerror}") from problem
        self._chain = AuditChain(chain.entries + 1, entry["hash"], chain.size + len(line))
        self._take(entry)
