"""Write finished runs of the paper as lines of a file: small enough to keep, with the origin of each number."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError
from fedmm.core.files import append_text, write_json
from fedmm.core.options import options_that_affect
from fedmm.reproduction.items import FULL
from fedmm.reproduction.plan import PaperRun
from fedmm.reproduction.results import RESULTS, Line, parse_line, read_lines
from fedmm.training.guard import Guard
from fedmm.training.history import History

_METRICS = ("target_accuracy", "source_accuracy", "source_risk", "target_information")
_DECIDING = options_that_affect("numbers", "seed")
_FIRST = ("rounds", "seed", "batch_size", "probe_rows", "dtype", "client_weights", "preset")
_SINCE: dict[str, dict[str, Any]] = {
    "run": {name: default for name, default in _DECIDING.items() if name not in _FIRST},
    "data": {"augment": True, "skip_bad": False, "validation_share": 0.0},
    "objective": {
        "target_loss": {"name": "none"},
        "target_weight": 1.0,
        "domain_smoothing": 0.0,
        "restrained": False,
        "source_share": 0.0,
        "sam_radius": 0.0,
        "class_weights": "none",
        "max_fpr": 1.0,
        "scaled": False,
    },
    "algorithm": {"server_optimizer": {"name": "none"}, "normalize_steps": False, "weighs": "all"},
    "aggregation": {"name": "mean"},
    "transmission": {"name": "exact"},
    "guard": asdict(Guard()),
}
"""Options newer than the first results, with the values those used; with these values they stay out of the digest."""
_NOTHING = object()
_DIGITS = 5


def digest(run: PaperRun) -> str:
    """Return a digest of everything that affects a run's numbers, but not where it runs or what it is called."""
    tables = run.experiment.tables()
    tables["run"] = {
        key: value
        for key, value in tables["run"].items()
        if key in _DECIDING and _SINCE["run"].get(key, _NOTHING) != value
    }
    for section in ("data", "objective", "algorithm"):
        younger = dict(_SINCE[section])
        if tables[section].get("name") == "fedprox_gda":
            younger["server_lr"] = 1.0
        tables[section] = {k: v for k, v in tables[section].items() if younger.get(k, _NOTHING) != v}
    for section in ("aggregation", "transmission", "guard"):
        if tables[section] == _SINCE[section]:
            del tables[section]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]


def result_line(run: PaperRun, history: History, status: str, provenance: Mapping[str, Any]) -> Line:
    """Return a run as one line: its last metrics, and all of them over the rounds."""
    rows = [row for row in history if row.get("target_accuracy") is not None]
    experiment = run.experiment
    series = {name: [_short(row.get(name)) for row in rows] for name in _METRICS}
    return {
        "item": run.item,
        "panel": run.panel,
        "curve": run.curve,
        "label": experiment.label,
        "role": run.role,
        "objective": experiment.objective.name,
        "algorithm": experiment.algorithm.name,
        "seed": experiment.run.seed,
        "scale": run.scale,
        "rounds": len(history),
        "status": status,
        **{name: values[-1] if values else None for name, values in series.items()},
        "series": {"round": [row["round"] for row in rows], **series},
        "digest": digest(run),
        "provenance": dict(provenance),
    }


def relabel(line: Line, run: PaperRun) -> Line:
    """Return a result as that of another run of the same experiment."""
    names = {"item": run.item, "panel": run.panel, "curve": run.curve, "role": run.role, "scale": run.scale}
    return {**line, **names, "label": run.experiment.label}


def _short(value: float | int | None) -> float | None:
    """Round to few digits; numbers that are not finite become null, since JSON has no infinity."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")


def append_lines(path: Path, lines: Iterable[Line]) -> None:
    """Append finished runs to a results file, on disk when this returns; first cut off a line torn by a crash."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    if not text and not path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_text(path, text, lambda line: parse_line(line) is not None)
    except OSError as problem:
        raise FedmmError(f"results cannot be written to {path}: {problem.strerror}") from problem


def collect(paper: Path, names: Sequence[str]) -> Path:
    """Write ``results.json``: every final number of the paper's items at full scale, and its provenance."""
    listed = []
    for name in names:
        for line in read_lines(paper / name / RESULTS):
            if line["scale"] == FULL:
                listed.append({key: value for key, value in line.items() if key not in ("series", "scale")})
    path = paper / "results.json"
    write_json(path, {"results": listed})
    return path


def stamp(command: str) -> dict[str, Any]:
    """Return the command, the commit and the time."""
    return {"command": command, "commit": _commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}


def _commit() -> str:
    """Return FEDMM_COMMIT or the working tree's commit, with a plus sign if the sources have changed since."""
    given = os.environ.get("FEDMM_COMMIT")
    if given:
        return given
    here = Path(__file__).parent
    try:
        head, changed = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--", ":/src"])
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head.strip() + ("+" if changed.strip() else "")
