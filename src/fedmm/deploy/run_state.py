"""Files that a run's server keeps in its folder while it runs: its lock, and status.json for observers."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from fedmm.core.errors import FedmmError, Say
from fedmm.core.files import hold_lock, write_json

LOG = "server.log"
_LOCK = "server.lock"


@contextmanager
def server_log(folder: Path) -> Iterator[Say]:
    """Log a run's server, with the time, to its file and to standard error; an error is its last line."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("a", encoding="utf-8") as log:

        def say(line: str) -> None:
            stamped = f"{time.strftime('%H:%M:%S')} {line}\n"
            sys.stderr.write(stamped)
            sys.stderr.flush()
            log.write(stamped)
            log.flush()

        try:
            yield say
        except FedmmError as problem:
            say(f"error: {problem}")
            raise


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock the run in this folder for one server; raise FedmmError if another one has it.

    A ServerApp may outlive its SuperLink, and must not continue beside its successor.
    """
    refusal = f"another server is already running the run in {folder}; `fedmm deploy resume` stops it"
    with hold_lock(folder / _LOCK, refusal, mode=0o644) as file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def server_pid(folder: Path) -> int | None:
    """Return the process that is running the run in this folder; None if there is none."""
    import fcntl  # noqa: PLC0415 - not on every system

    try:
        with (folder / _LOCK).open("r", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(file.read())
    except (OSError, ValueError):
        pass
    return None


def end_server(folder: Path, seconds: float = 20.0) -> bool:
    """Stop the server of a run, whose rounds are all on disk; return whether there was one."""
    pid = server_pid(folder)
    if pid is None:
        return False
    deadline, polite = time.monotonic() + seconds, time.monotonic() + seconds / 2
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while server_pid(folder) == pid:
            if time.monotonic() > polite:
                os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise FedmmError(f"process {pid} is already running the run in {folder}, and cannot be stopped")
            time.sleep(0.1)
    return True


STATUS, VERSION = "status.json", 1


class ConnectedSites(Protocol):
    """Where sites are; a roster is one. since: when each came online. connected: the sites online."""

    names: Any
    since: dict[str, str]
    connected: frozenset[str]


class StatusFile:
    """Writes ``status.json`` after every round, and when a site connects or disconnects.

    A site's entry: whether and since when it is online, and the round, time and duration of its last answer.
    """

    def __init__(self, folder: Path, sites: ConnectedSites, rounds: int, round: int = 0) -> None:
        self._path = folder / STATUS
        self._sites = sites
        self._rounds = rounds
        self._round = round
        self._answers: dict[str, dict[str, float]] = {}
        self.write()

    def after_round(self, round: int, timings: Mapping[str, Mapping[str, Any]]) -> None:
        """Record a finished round. timings: what the sites that answered report of their time."""
        self._round = round
        for name, about in timings.items():
            handled, trained = (_seconds(about.get(key)) for key in ("handled", "trained"))
            self._answers[name] = {"round": round, "answered": time.time(), "seconds": handled, "training": trained}
        self.write()

    def write(self) -> None:
        """Write the current status. A disk that refuses it must not end the run."""
        sites = {
            name: {
                "online": name in self._sites.connected,
                "since": str(self._sites.since.get(name, "")),
                **self._answers.get(name, {}),
            }
            for name in self._sites.names
        }
        about = {"version": VERSION, "updated": time.time(), "round": self._round, "rounds": self._rounds}
        with suppress(FedmmError):
            write_json(self._path, {**about, "sites": sites})


def _seconds(value: object) -> float:
    """Convert a duration reported by a site, which may be anything."""
    known = isinstance(value, int | float) and math.isfinite(value)
    return min(max(float(value), 0.0), 1e9) if known else 0.0  # type: ignore[arg-type]
