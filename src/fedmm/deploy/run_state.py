"""What a run's server leaves in its folder while it is at work: its lock, and status.json for those who watch."""

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
    """What a run's server says, with the time, to its log and its own process's; an error is its last line."""
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
    """Be the one server of the run in this folder; refused while another one is.

    A ServerApp may outlive its SuperLink, and must not go on beside its successor.
    """
    refusal = f"another server is already running the run in {folder}; `resume` ends it"
    with hold_lock(folder / _LOCK, refusal, mode=0o644) as file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def server_pid(folder: Path) -> int | None:
    """The process that is already running the run in this folder, if one is."""
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
    """End the server that is at work on a run, whose rounds are all on disk; whether there was one."""
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
                raise FedmmError(f"process {pid} is already running the run in {folder}, and cannot be ended")
            time.sleep(0.1)
    return True


STATUS, VERSION = "status.json", 1


class ConnectedSites(Protocol):
    """Where sites are; a roster is one. since: by site, when it came online. connected: who is."""

    names: Any
    since: dict[str, str]
    connected: frozenset[str]


class StatusFile:
    """Writes ``status.json`` after every round, and when a site comes or goes.

    A site's entry: online, since when, and of its last answer the round, the time and the seconds that it took.
    """

    def __init__(self, folder: Path, sites: ConnectedSites, rounds: int, round: int = 0) -> None:
        self._path = folder / STATUS
        self._sites = sites
        self._rounds = rounds
        self._round = round
        self._answers: dict[str, dict[str, float]] = {}
        self.write()

    def after_round(self, round: int, timings: Mapping[str, Mapping[str, Any]]) -> None:
        """A round is finished. timings: what those sites that answered say of their time."""
        self._round = round
        for name, about in timings.items():
            handled, trained = (_seconds(about.get(key)) for key in ("handled", "trained"))
            self._answers[name] = {"round": round, "answered": time.time(), "seconds": handled, "training": trained}
        self.write()

    def write(self) -> None:
        """Write what is known now. A disk that takes nothing is no reason to end a run."""
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
    """A site's own word for it."""
    known = isinstance(value, int | float) and math.isfinite(value)
    return min(max(float(value), 0.0), 1e9) if known else 0.0  # type: ignore[arg-type]
