"""Processes that outlive the command that started them, and how to stop all of them whatever happened in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedmm.core.files import write_text

MARK = "FEDMM_FEDERATION"
"""The environment variable by which a federation's processes are found."""


_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Started:
    """A process that leads its own group. began: its start time in the system's ticks; 0 if unknown."""

    name: str
    pid: int
    began: int

    @property
    def alive(self) -> bool:
        """Whether it still runs and its number does not belong to another process."""
        state, began = _status(self.pid)
        return state not in ("", "Z", "X") and (not self.began or began == self.began)


def start(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Started:
    """Start a process in its own session; append its output to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=dict(environment)
        )
    _children.append(process)
    return Started(name, process.pid, _status(process.pid)[1])


def save(path: Path, started: Sequence[Started]) -> None:
    """Store processes for another command."""
    write_text(path, json.dumps([vars(process) for process in started], indent=2) + "\n")


def load(path: Path) -> list[Started]:
    """Return the stored processes."""
    try:
        return [Started(**table) for table in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []


def read_log(path: Path) -> str:
    """Return a process's output so far."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def stop(started: Sequence[Started], folder: Path, seconds: float = 15.0) -> int:
    """Stop these processes and all others with the federation's mark; return how many there were.

    Ctrl-C or SIGTERM while they are stopping kills them at once.
    """
    groups = {process.pid for process in started if process.alive}
    found = {*find_marked(folder), *groups}
    try:
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
            _send(number, groups, folder)
            if _gone(started, folder, patience):
                break
    except BaseException:
        _send(signal.SIGKILL, groups, folder)
        raise
    for child in _children:
        if child.pid in found:
            with suppress(subprocess.TimeoutExpired):
                child.wait(2.0)
    _reap()
    return len(found)


@contextmanager
def leave_when_told() -> Iterator[None]:
    """Let SIGTERM and a closed terminal unwind the program as Ctrl-C does, so that it stops what it started."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signals = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in signals:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)


def _send(number: signal.Signals, groups: Collection[int], folder: Path) -> None:
    for pid in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
    for pid in find_marked(folder):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _gone(started: Sequence[Started], folder: Path, seconds: float) -> bool:
    """Return whether all have ended within ``seconds``."""
    deadline = time.monotonic() + seconds
    while find_marked(folder) or any(process.alive for process in started):
        if time.monotonic() > deadline:
            return False
        _reap()
        time.sleep(0.1)
    return True


def find_marked(folder: Path) -> list[int]:
    """Return the visible processes with the federation's mark, except this one and its ancestors."""
    wanted = f"{MARK}={folder.resolve()}".encode()
    ours = _ancestors()
    found = []
    for entry in Path("/proc").glob("[0-9]*") if Path("/proc/self").exists() else ():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            state = _status(pid)[0]
            if pid not in ours and state not in ("Z", "X") and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _ancestors() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def _status(pid: int) -> tuple[str, int]:
    """Return a process's state and start time; an empty state if it does not exist."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return words[0], int(words[19])
    except (OSError, ValueError, IndexError):
        pass
    if Path("/proc/self").exists():
        return "", 0
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return "", 0
    return "?", 0


def _reap() -> None:
    """Reap our own children that have ended."""
    for child in _children:
        child.poll()
