"""One file over HTTP: resumed where it broke off, tried again, and checked before it gets its name."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fedmm.core.errors import FedmmError, require
from fedmm.data.sources import StoredFile, describe_expected

PARTIAL = ".partial"
_BLOCK = 1 << 16
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416
_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Answers after which it is worth trying again."""

Moved = Callable[[int], None]
"""Called with the number of bytes that were gained; below 0 if some are thrown away."""


class _Broken(Exception):  # noqa: N818 - reads as what happened
    """The transfer failed; the same address may do better next time."""


class _Useless(Exception):  # noqa: N818 - reads as what happened
    """The address does not have the file."""


@dataclass(frozen=True)
class Retries:
    """How long to try, and how much to take.

    attempts: at each address, with ``pause`` seconds before the second, twice that before the third and so on.
    timeout: seconds within which something must arrive.
    most: bytes of a file whose size nobody published; of any other, its size is the bound.
    """

    attempts: int = 4
    pause: float = 2.0
    timeout: float = 30.0
    most: int = 2_000_000_000

    def __post_init__(self) -> None:
        require(self.most >= 1, f"a download's bound must be at least 1 byte, not {self.most}")


RETRIES = Retries()


def download(folder: Path, file: StoredFile, moved: Moved, retries: Retries = RETRIES) -> None:
    """Bring a file into a folder from the first of its addresses that has it.

    Until its size and checksum are right it is called ``NAME.partial``; what an interrupted download left there is
    completed.
    """
    path = folder / file.path
    transfer = _Transfer(path.with_name(path.name + PARTIAL), file, moved, retries)
    reasons = []
    try:
        transfer.partial.parent.mkdir(parents=True, exist_ok=True)
        moved(transfer.size)
        for address in file.addresses:
            reason = transfer.complete(address)
            if not reason:
                transfer.partial.replace(path)
                return
            reasons.append(f"{address} ({reason})")
    except OSError as problem:
        raise FedmmError(f"{transfer.partial} cannot be written: {problem.strerror or problem}") from problem
    raise FedmmError(f"{path} could not be fetched from {', nor from '.join(reasons)}{describe_expected(file)}")


@dataclass(frozen=True)
class _Transfer:
    """One file on its way to ``partial``."""

    partial: Path
    file: StoredFile
    moved: Moved
    retries: Retries

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return self.partial.stat().st_size if self.partial.exists() else 0

    def complete(self, address: str) -> str:
        """Try until the file is whole and right; returns what is wrong with the address, or nothing."""
        failures = 0
        while True:
            before = self.size
            try:
                self._attempt(address)
                return ""
            except _Useless as problem:
                return str(problem)
            except _Broken as problem:
                failures = 1 if self.size > before else failures + 1
                if failures >= self.retries.attempts:
                    return str(problem)
            time.sleep(self.retries.pause * failures)

    def _attempt(self, address: str) -> None:
        """Make the file whole and right; if that fails, what came of it stays to be resumed."""
        start = self.size
        if start == 0 or start != self.file.size:
            self._receive(address, start)
        with self.partial.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        if not sha256.startswith(self.file.sha256):
            self._discard()
            raise (
                _Broken("what was left of an older download is wrong") if start else _Useless(f"its sha256 is {sha256}")
            )

    def _receive(self, address: str, start: int) -> None:
        bound = self.retries.most if self.file.size is None else self.file.size
        response = _open(address, start, self.retries.timeout)
        if response is None:
            self._discard()
            raise _Broken("what was left of an older download is too long")
        with response:
            begin, total = _extent(response, start)
            if self.file.size is not None and total not in (None, self.file.size):
                raise _Useless(f"it has {total} bytes there")
            if total is not None and total > bound:
                raise _Useless(f"it has {total} bytes there, more than the {bound} that are accepted")
            self.moved(begin - start)
            size = self._append(response, begin, bound)
        if size > bound:
            self._discard()
            raise _Useless(f"it sends more than {bound} bytes")
        if total is not None and size < total:
            raise _Broken(f"it broke off after {size} of {total} bytes")

    def _append(self, response: HTTPResponse, begin: int, bound: int) -> int:
        """Write what comes, from byte ``begin`` on, until it is more than ``bound``; returns the file's size then."""
        with self.partial.open("r+b" if begin else "wb") as stream:
            stream.seek(begin)
            while stream.tell() <= bound:
                with _network():
                    block = response.read1(_BLOCK)  # whatever is there already, so that Ctrl-C need not wait
                if not block:
                    break
                stream.write(block)
                self.moved(len(block))
            return stream.tell()

    def _discard(self) -> None:
        self.moved(-self.size)
        self.partial.unlink()


def _open(address: str, start: int, timeout: float) -> HTTPResponse | None:
    """The answer of a server that has the file; None if it has fewer bytes than are to be skipped."""
    headers = {"User-Agent": "fedmm"} | ({"Range": f"bytes={start}-"} if start else {})
    with _network():
        try:
            response: HTTPResponse = urlopen(Request(address, headers=headers), timeout=timeout)
            return response
        except HTTPError as answer:
            answer.close()
            if answer.code == _RANGE_NOT_SATISFIABLE and start:
                return None
            reason = f"the server answers {answer.code} {answer.reason}".rstrip()
            raise _Broken(reason) if answer.code in _PASSING else _Useless(reason) from answer


def _extent(response: HTTPResponse, start: int) -> tuple[int, int | None]:
    """The place of the first byte that comes, and the size of the whole file if the server says it."""
    length = response.headers.get("Content-Length", "")
    if response.status != _PARTIAL_CONTENT:
        return 0, int(length) if length.isdecimal() else None
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if not match or int(match[1]) != start:
        raise _Useless("it sends other bytes than it was asked for")
    return start, int(match[2]) if match[2] != "*" else None


@contextmanager
def _network() -> Iterator[None]:
    """What goes wrong on the way is worth another try."""
    try:
        yield
    except (OSError, HTTPException) as problem:
        raise _Broken(str(getattr(problem, "reason", "") or problem) or type(problem).__name__) from problem
