"""The leaderboard's results file: a JSON line for each search and each run, appended when it ends."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import append_text
from fedmm.leaderboard.trials import Goal, Problem, Trace, cost_to
from fedmm.reporting.fields import Fields, finite, read_json_lines

RESULTS = "results.jsonl"
HINT = "`fedmm leaderboard` writes it as its runs end"
_KINDS = ("search", "run")
_POINTS = 40
"""The most points of a run's metric over its rounds that are kept, beside the last."""


@dataclass(frozen=True)
class Result:
    """A reported run.

    title: of the problem. bytes_up, gradients: what it had spent when it reached the target; None if it did not.
    final: the metric after the last round, None if the run diverged. options: of the method, as chosen by the search.
    """

    title: str
    goal: Goal
    method: str
    seed: int
    options: Mapping[str, Any]
    final: float | None
    bytes_up: int | None
    gradients: int | None
    total_bytes: int
    total_gradients: int
    diverged: bool
    rounds: int
    seconds: float
    about: Mapping[str, Any]


def identify(kind: str, problem: Problem, method: str, **further: Any) -> dict[str, Any]:
    """Return what identifies a line: its kind, problem, method and further settings."""
    settings = {"name": problem.name, **asdict(problem)}  # type: ignore[call-overload]
    return {"kind": kind, "problem": settings, "method": method, **further}


def run_line(
    identity: Mapping[str, Any], problem: Problem, trace: Trace, seconds: float, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the line of a finished run."""
    measured = [number for number, value in enumerate(trace.values) if not math.isnan(value)]
    thin = measured[:: -(-len(measured) // _POINTS)] if measured else []
    shown = sorted({*thin, *measured[-1:]})
    cost = None if trace.diverged else cost_to(problem.goal, trace)
    return {
        **identity,
        "title": problem.title,
        "goal": asdict(problem.goal),
        "diverged": trace.diverged,
        "final": _short(trace.values[measured[-1]]) if measured and not trace.diverged else None,
        "to_target": asdict(cost) if cost else None,
        "bytes_up": sum(trace.bytes_up),
        "gradients": sum(trace.gradients),
        "rounds": len(trace.bytes_up),
        "series": {
            "round": [number + 1 for number in shown],
            "value": [_short(trace.values[number]) for number in shown],
        },
        "seconds": round(seconds, 2),
        "about": dict(about),
    }


def _short(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a results file, none if there is no file; ignore a last line that a crash cut short."""
    if not path.exists():
        return []
    lines = read_json_lines(path, HINT)
    for number, line in lines:
        known = isinstance(line, dict) and line.get("kind") in _KINDS
        require(known, f"{path}, line {number}, is not a result of the leaderboard; remove the line")
    return [line for _, line in lines]


def find_line(lines: Sequence[Mapping[str, Any]], identity: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the newest line with this identity; None if there is none."""
    wanted = json.loads(json.dumps(identity))
    fits = (line for line in reversed(lines) if all(line.get(name) == value for name, value in wanted.items()))
    return next(fits, None)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line, on disk when this returns; first remove one that a crash cut short."""
    with _explain_write(path):
        append_text(path, json.dumps(line, allow_nan=False) + "\n", _is_json)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def make_folder(results: Path) -> None:
    """Create the folder of a results file, before anything is computed for it."""
    with _explain_write(results):
        results.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _explain_write(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise FedmmError(f"results cannot be written to {path}: {reason}") from problem


def read_results(path: Path) -> list[Result]:
    """Read the runs of a results file; for each title, method and seed, the last one counts."""
    found = {}
    for number, line in read_json_lines(path, HINT):
        fields = Fields(f"{path}, line {number},", line if isinstance(line, dict) else {})
        if fields.one_of("kind", _KINDS) == "run":
            result = _result(fields)
            found[result.title, result.method, result.seed] = result
    require(bool(found), f"{path} holds no finished run yet")
    return list(found.values())


def _result(line: Fields) -> Result:
    goal, cost = line.table("goal", needed=True), line.values.get("to_target")
    reached = Fields(line.where, cost, "to_target.") if isinstance(cost, dict) else None
    return Result(
        title=line.text("title"),
        goal=Goal(goal.text("metric"), goal.number("target"), goal.values.get("higher") is True),
        method=line.text("method"),
        seed=line.whole("seed"),
        options=line.table("options").values,
        final=finite(line.values.get("final")),
        bytes_up=reached.whole("bytes_up") if reached else None,
        gradients=reached.whole("gradients") if reached else None,
        total_bytes=line.whole("bytes_up"),
        total_gradients=line.whole("gradients"),
        diverged=line.values.get("diverged") is True,
        rounds=line.whole("rounds"),
        seconds=line.number("seconds"),
        about=line.table("about").values,
    )
