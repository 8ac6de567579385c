"""One server at a time for a run: a ServerApp may outlive its SuperLink, and must not go on beside its successor."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmm.core.errors import FedmmError

_LOCK = "server.lock"


@contextmanager
def driving(folder: Path) -> Iterator[None]:
    """Be the one server of the run in this folder; refused while another one is."""
    import fcntl  # noqa: PLC0415 - not on every system, and only servers need it

    with (folder / _LOCK).open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FedmmError(f"another server is at work on the run in {folder}; `resume` ends it") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def driver(folder: Path) -> int | None:
    """The process that is at work on the run in this folder, if one is."""
    import fcntl  # noqa: PLC0415 - not on every system, and only servers need it

    try:
        with (folder / _LOCK).open("r", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(file.read())
    except (OSError, ValueError):
        pass
    return None


def end_driver(folder: Path, seconds: float = 20.0) -> bool:
    """End the server that is at work on a run, whose rounds are all on disk; whether there was one."""
    pid = driver(folder)
    if pid is None:
        return False
    deadline, polite = time.monotonic() + seconds, time.monotonic() + seconds / 2
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while driver(folder) == pid:
            if time.monotonic() > polite:
                os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise FedmmError(f"process {pid} is at work on the run in {folder}, and cannot be ended")
            time.sleep(0.1)
    return True
