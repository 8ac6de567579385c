"""Download one file over HTTP: resume it, retry, and verify it before it gets its final name."""

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
"""Status codes that are worth a retry."""

Moved = Callable[[int], None]
"""Called with the number of bytes received; negative if some are discarded."""


class _Broken(Exception):  # noqa: N818 - reads as what happened
    """The transfer failed; a retry at the same address may succeed."""


class _Useless(Exception):  # noqa: N818 - reads as what happened
    """The address does not serve the file."""


@dataclass(frozen=True)
class Retries:
    """How often and how long to try, and how many bytes to accept.

    attempts: per address, counted anew after progress; the k-th failure in a row is followed by k * ``pause`` seconds.
    timeout: seconds to wait for data.
    most: the byte limit for files of unknown size; otherwise the published size is the limit.
    """

    attempts: int = 4
    pause: float = 2.0
    timeout: float = 30.0
    most: int = 2_000_000_000

    def __post_init__(self) -> None:
        require(self.most >= 1, f"a download's bound must be at least 1 byte, not {self.most}")


RETRIES = Retries()


def download(folder: Path, file: StoredFile, moved: Moved, retries: Retries = RETRIES) -> None:
    """Download a file into a folder from the first of its addresses that has it.

    Until its size and checksum are right it is called ``NAME.partial``; an interrupted download is resumed from there.
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
    """One file in transfer to ``partial``."""

    partial: Path
    file: StoredFile
    moved: Moved
    retries: Retries

    @property
    def size(self) -> int:
        """Bytes received so far."""
        return self.partial.stat().st_size if self.partial.exists() else 0

    def complete(self, address: str) -> str:
        """Retry until the file is complete and verified; return what is wrong with the address, or an empty string."""
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
        """Complete and verify the file; on failure keep what can be resumed."""
        start = self.size
        if start == 0 or start != self.file.size:
            self._receive(address, start)
        with self.partial.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        if not sha256.startswith(self.file.sha256):
            self._discard()
            raise (
                _Broken("the partial file of an earlier download is corrupt")
                if start
                else _Useless(f"its sha256 is {sha256}")
            )

    def _receive(self, address: str, start: int) -> None:
        bound = self.retries.most if self.file.size is None else self.file.size
        response = _open(address, start, self.retries.timeout)
        if response is None:
            self._discard()
            raise _Broken("the partial file of an earlier download is too long")
        with response:
            begin, total = _extent(response, start)
            if self.file.size is not None and total not in (None, self.file.size):
                raise _Useless(f"its size there is {total} bytes")
            if total is not None and total > bound:
                raise _Useless(f"its size there is {total} bytes, more than the {bound} that are accepted")
            self.moved(begin - start)
            size = self._append(response, begin, bound)
        if size > bound:
            self._discard()
            raise _Useless(f"it sent more than {bound} bytes")
        if total is not None and size < total:
            raise _Broken(f"the transfer broke off after {size} of {total} bytes")

    def _append(self, response: HTTPResponse, begin: int, bound: int) -> int:
        """Write what arrives, from byte ``begin`` on, until it exceeds ``bound``; return the file's size afterwards."""
        with self.partial.open("r+b" if begin else "wb") as stream:
            stream.seek(begin)
            while stream.tell() <= bound:
                with _network():
                    block = response.read1(_BLOCK)  # returns what has arrived, so that Ctrl-C need not wait
                if not block:
                    break
                stream.write(block)
                self.moved(len(block))
            return stream.tell()

    def _discard(self) -> None:
        self.moved(-self.size)
        self.partial.unlink()


def _open(address: str, start: int, timeout: float) -> HTTPResponse | None:
    """Return the server's response; None if the file is shorter than the bytes to skip."""
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
    """Return the offset of the first byte to arrive, and the size of the whole file if the server tells it."""
    length = response.headers.get("Content-Length", "")
    if response.status != _PARTIAL_CONTENT:
        return 0, int(length) if length.isdecimal() else None
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if not match or int(match[1]) != start:
        raise _Useless("it sent a different byte range than requested")
    return start, int(match[2]) if match[2] != "*" else None


@contextmanager
def _network() -> Iterator[None]:
    """Turn network errors into :class:`_Broken`, which is retried."""
    try:
        yield
    except (OSError, HTTPException) as problem:
        raise _Broken(str(getattr(problem, "reason", "") or problem) or type(problem).__name__) from problem
