"""A run's state from the files of its folder alone: during it, after it, and before its first round.

Sites influence these files (names, reasons, numbers), so what is read is checked and truncated.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedmm.core.files import parse_toml
from fedmm.deploy.layout import TUNING, Federation, is_tuning
from fedmm.deploy.processes import Started
from fedmm.remote.packed import one_line

_BOOKKEEPING = {
    "round", "seconds", "loss", "bytes_up", "bytes_down", "clients", "refused", "epsilon", "drift", "consensus_gap",
    "dual_norm", "rolled_back_to", "stopped",
}  # fmt: skip
_MOST_SITES, _MOST_METRICS, _MOST_BYTES, _LAST_ROWS, _LAST_REFUSALS, _LAST_LINES = 1000, 50, 1 << 24, 8, 5, 3
_LONGEST = 80
"""Characters shown of a name or a word."""

Row = dict[str, float | None]


class SiteView(NamedTuple):
    """A site. online: None if unknown. round, answered, seconds: of its last answer. refused: how often."""

    name: str
    online: bool | None
    since: str
    round: int | None
    answered: float | None
    seconds: float | None
    refused: int


class RefusalView(NamedTuple):
    """An update that was not counted."""

    round: int
    site: str
    reason: str


@dataclass(frozen=True)
class RunView:
    """A run. state: in words. over: whether it will not continue by itself. metrics: the newest value of each."""

    name: str
    state: str
    at_work: bool
    over: bool
    round: int
    rounds: int | None
    seconds: float | None
    loss: float | None
    epsilon: float | None
    bytes_up: int
    bytes_down: int
    refused: int
    metrics: Mapping[str, float]
    sites: tuple[SiteView, ...]
    rows: tuple[Row, ...]
    refusals: tuple[RefusalView, ...]
    log: tuple[str, ...]
    updated: float | None


class RunReader:
    """Reads a run's folder repeatedly, and of its long files only what is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rounds, self._refused = _GrowingFile(folder / "rounds.jsonl"), _GrowingFile(folder / "refused.jsonl")
        self._planned: int | None = None
        self._clear_rounds()
        self._clear_refusals()

    def read(self) -> RunView:
        """Return the run as it stands now."""
        self._read_rounds()
        self._read_refusals()
        status = _table(self.folder / "status.json")
        summary = _table(self.folder / "summary.json") or _read_tuning_summary(self.folder)
        log = _tail(self.folder / "server.log")
        at_work = _at_work(self.folder)
        newest = self._rows[-1] if self._rows else {}
        state, over = _state(at_work, summary, log, began=bool(status or self._rows) or is_tuning(self.folder))
        return RunView(
            name=one_line(self.folder.name, _LONGEST),
            state=state,
            at_work=at_work,
            over=over,
            round=int(newest.get("round") or 0),
            rounds=self._total(status),
            seconds=newest.get("seconds"),
            loss=newest.get("loss"),
            epsilon=self._epsilon,
            bytes_up=self._bytes["bytes_up"],
            bytes_down=self._bytes["bytes_down"],
            refused=self._refusals.total(),
            metrics={name: value for name, value in self._metrics.items() if value is not None},
            sites=tuple(self._sites(status, _table(self.folder / "sites.json"))),
            rows=tuple(self._rows),
            refusals=tuple(self._reasons),
            log=tuple(log),
            updated=_number(status.get("updated")),
        )

    def _clear_rounds(self) -> None:
        self._rows: deque[Row] = deque(maxlen=_LAST_ROWS)
        self._bytes: Counter[str] = Counter()
        self._metrics: dict[str, float | None] = {}
        self._epsilon: float | None = None

    def _clear_refusals(self) -> None:
        self._refusals: Counter[str] = Counter()
        self._reasons: deque[RefusalView] = deque(maxlen=_LAST_REFUSALS)

    def _read_rounds(self) -> None:
        again, tables = self._rounds.new()
        if again:
            self._clear_rounds()
        for table in tables:
            row = {one_line(name, _LONGEST): _number(value) for name, value in table.items() if "." not in name}
            if row.get("round") is None or "stopped" in row:
                continue
            self._rows.append(row)
            for name in ("bytes_up", "bytes_down"):
                self._bytes[name] += int(row.get(name) or 0)
            self._epsilon = row.get("epsilon", self._epsilon)
            for name, value in row.items():
                known = name in self._metrics or len(self._metrics) < _MOST_METRICS
                if name not in _BOOKKEEPING and known:
                    self._metrics[name] = self._metrics.get(name) if value is None else value

    def _read_refusals(self) -> None:
        again, tables = self._refused.new()
        if again:
            self._clear_refusals()
        for table in tables:
            site = one_line(table.get("client", "?"), _LONGEST)
            if site not in self._refusals and len(self._refusals) >= _MOST_SITES:
                site = "others"
            self._refusals[site] += 1
            round = int(_number(table.get("round")) or 0)
            self._reasons.append(RefusalView(round, site, one_line(table.get("reason", ""), 300)))

    def _sites(self, status: Mapping[str, Any], infos: Mapping[str, Any]) -> Iterator[SiteView]:
        told = status.get("sites")
        entries = told if isinstance(told, dict) else {}
        for name in list({**infos, **entries})[:_MOST_SITES]:
            entry = entries.get(name)
            entry = entry if isinstance(entry, dict) else {}
            online, round = entry.get("online"), _number(entry.get("round"))
            yield SiteView(
                one_line(name, _LONGEST),
                online if isinstance(online, bool) else None,
                one_line(entry.get("since", ""), _LONGEST),
                None if round is None else int(round),
                _number(entry.get("answered")),
                _number(entry.get("seconds")),
                self._refusals[one_line(name, _LONGEST)],
            )

    def _total(self, status: Mapping[str, Any]) -> int | None:
        total = _number(status.get("rounds"))
        if total is not None:
            return int(total)
        if self._planned is None:
            with suppress(OSError, ValueError):
                tables = parse_toml((self.folder / "submitted.toml").read_bytes(), self.folder)
                run = tables.get("run")
                planned = _number(run.get("rounds")) if isinstance(run, dict) else None
                self._planned = None if planned is None else int(planned)
        return self._planned


def newest_run(federation: Federation) -> str | None:
    """Return the run that was submitted last; None if there is none."""

    def submitted(folder: Path) -> float:
        with suppress(OSError):
            return (folder / "submitted.toml").stat().st_mtime
        return 0.0

    folders = [folder for folder in federation.runs.glob("*") if folder.is_dir()]
    return max(folders, key=submitted).name if folders else None


def require_run(federation: Federation, name: str) -> Path:
    """Return the folder of a run; raise FedmmError if it does not exist."""
    folder = federation.run(name)
    if not folder.is_dir():
        raise federation.no_run(name)
    return folder


class _GrowingFile:
    """A growing file of JSON lines, which a resumed run may rewrite."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = self._file = 0

    def new(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return whether the file was rewritten, and the complete lines added since the last call."""
        try:
            with self._path.open("rb") as file:
                about = os.fstat(file.fileno())
                again = about.st_ino != self._file or about.st_size < self._place
                self._file, self._place = about.st_ino, 0 if again else self._place
                file.seek(self._place)
                content = file.read(_MOST_BYTES)
        except OSError:
            again, self._file, self._place = self._place > 0, 0, 0
            return again, []
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        return again, [table for line in whole.splitlines() if isinstance(table := _json(line), dict)]


def _json(text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            table = _json(file.read(_MOST_BYTES))
    except OSError:
        return {}
    return table if isinstance(table, dict) else {}


def _read_tuning_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished tuning."""
    summary = _table(folder / TUNING / "summary.json")
    return {} if summary.get("status") == "running" else summary


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            text = file.read(8192).decode("utf-8", "replace")
    except OSError:
        return []
    return [one_line(line, 200) for line in text.splitlines()[-_LAST_LINES:]]


def _number(value: object) -> float | None:
    """Return the value if it is a finite number, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None


def _at_work(folder: Path) -> bool:
    """Return whether the run's server is a process on this machine.

    Unlike :func:`fedmm.deploy.run_state.server_pid` it does not try the lock, which could keep a server from starting.
    """
    try:
        pid = int((folder / "server.lock").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False
    return pid > 0 and Started("", pid, 0).alive


def _state(at_work: bool, summary: Mapping[str, Any], log: list[str], *, began: bool) -> tuple[str, bool]:
    """Describe a run's state in words; also return whether it is over."""
    if at_work:
        return ("running" if began else "waiting for its sites"), False
    if summary:
        return one_line(summary.get("status", "ended"), _LONGEST), True
    if log and " error: " in log[-1]:
        return "ended with an error", True
    return ("not running; `fedmm deploy resume` continues it" if began or log else "not begun"), False
