"""Questions to a site's resident worker over a Unix socket, and its answers. Needs no torch.

Both sides show each other a secret that lies in the site's state folder, where only its owner can read it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

from fedmm.core.errors import FedmmError
from fedmm.engines.packed import Malformed, Packed
from fedmm.engines.pipes import Pipe, receive, send

_SECRET, _LOCK = "worker.secret", "worker.lock"
_LONGEST = 90  # bytes of a socket's path; systems take 104 or 108
_PROBLEM = "worker_problem"

Answer = Callable[[str, Packed], Packed]


class NoWorker(Exception):  # noqa: N818 - reads as what is the matter
    """No resident worker listens at this site."""


def socket_path(state: Path) -> Path:
    """Where a site's worker listens: in its state folder, or, where that path is too long, in a private folder."""
    path = state.resolve() / "worker.sock"
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    folder = Path(tempfile.gettempdir()) / f"fedmm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise FedmmError(f"{folder} must belong to you alone: it is where workers listen")
    return folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:24]}.sock"


@contextmanager
def alone(state: Path, seconds: float = 60.0) -> Iterator[None]:
    """Be the one process that works with a site's states; whoever keeps them in memory must not miss another's."""
    state.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with (state / _LOCK).open("a", encoding="ascii") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise FedmmError(f"another process is at work with the states in {state}") from None
                time.sleep(0.05)
        yield


def ask(state: Path, kind: str, question: Packed) -> Packed:
    """The worker's answer; ``NoWorker`` where none listens."""
    try:
        secret = (state / _SECRET).read_bytes()
        connection = Client(str(socket_path(state)), family="AF_UNIX", authkey=secret)
    except (OSError, AuthenticationError, EOFError) as problem:
        raise NoWorker(str(problem)) from problem
    with connection:
        try:
            send(connection, kind, question)
            kind, answer = receive(connection)
        except (OSError, EOFError) as problem:
            raise NoWorker(f"it went away: {problem}") from problem
    if kind == _PROBLEM:
        raise FedmmError(str(answer.about["problem"]))
    return answer


def listen(state: Path, answer: Answer, ready: Callable[[], None] = lambda: None) -> None:
    """Answer questions, one after the other, until the process is ended."""
    with alone(state):
        _listen(state, answer, ready)


def _listen(state: Path, answer: Answer, ready: Callable[[], None]) -> None:
    state.chmod(0o700)
    secret = secrets.token_bytes(32)
    _write_privately(state / _SECRET, secret)
    path = socket_path(state)
    with suppress(FileNotFoundError):
        path.unlink()
    with Listener(str(path), family="AF_UNIX", authkey=secret) as listener:
        path.chmod(0o600)
        ready()
        while True:
            try:
                connection = listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue
            with connection, suppress(OSError, EOFError):
                _answered(connection, answer)


def _answered(connection: Pipe[bytes, bytes], answer: Answer) -> None:
    kind, question = receive(connection)
    try:
        send(connection, kind, answer(kind, question))
    except (FedmmError, Malformed) as problem:
        send(connection, _PROBLEM, Packed({}, {"problem": str(problem)}, {}))


def _write_privately(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with suppress(FileNotFoundError):
        partial.unlink()
    number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "wb") as file:
        file.write(content)
    partial.replace(path)
