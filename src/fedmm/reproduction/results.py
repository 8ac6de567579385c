"""Finished runs of the paper's experiments, read from JSON lines: one per run, written as it ends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.reporting.fields import Fields, finite, read_bytes
from fedmm.reporting.read import Series
from fedmm.reproduction.items import FULL, Cell, Item

RESULTS = "results.jsonl"
Line = dict[str, Any]


@dataclass(frozen=True)
class RunResult:
    """One finished run. Accuracies are fractions in [0, 1], None if never measured.

    role: ``method``, or ``bound`` for a run that only shows what is possible.
    target_accuracy: of the last round, or of the last good one if the run diverged.
    measured: its quantities over the rounds in which they were measured and finite.
    """

    item: str
    panel: str
    curve: str
    label: str
    role: str
    objective: str
    algorithm: str
    seed: int
    scale: str
    rounds: int
    status: str
    target_accuracy: float | None
    measured: Mapping[str, Series]
    provenance: Mapping[str, object]

    @property
    def cell(self) -> Cell:
        return self.panel, self.curve

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    def series(self, name: str) -> Series:
        """Return a quantity by name, empty if it was never measured."""
        return self.measured.get(name, Series([], []))


def read_results(path: Path | str) -> list[RunResult]:
    """Read the runs of a file; the last line of a panel, curve, seed and scale counts. A torn last line is dropped."""
    path = Path(path)
    results: dict[tuple[object, ...], RunResult] = {}
    for number, line in _read_lines(path):
        run = _run(Fields(f"{path}, line {number},", line))
        results[run.item, run.panel, run.curve, run.seed, run.scale] = run
    return list(results.values())


def read_lines(path: Path) -> list[Line]:
    """Return the newest line of each run in a results file as it was written; none if there is no file."""
    lines: dict[tuple[Any, ...], Line] = {}
    for _, line in _read_lines(path) if path.exists() else ():
        lines.pop(identity(line), None)
        lines[identity(line)] = line
    return list(lines.values())


def identity(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a line is the result of."""
    return tuple(line[key] for key in ("panel", "curve", "seed", "scale"))


def parse_line(content: bytes) -> Line | None:
    """Parse a line of a results file; None if it is not a result."""
    try:
        line: Line = json.loads(content)
        hash((line["digest"], *identity(line)))
        json.dumps(line, allow_nan=False)  # raises if the line could not be written again
        return line
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """Yield the lines that are results with their numbers, without a last line that a crash tore."""
    contents = read_bytes(path, "`fedmm reproduce` writes it as its runs end").split(b"\n")
    for number, content in enumerate(contents, start=1):
        line = parse_line(content)
        if line is not None:
            yield number, line
        elif content.strip() and number < len(contents):
            raise FedmmError(f"{path}, line {number}, is not a result of a run; remove the line")


def select_runs(runs: Sequence[RunResult], item: Item, path: Path) -> list[RunResult]:
    """Return the runs that an item shows, all of one scale: the full one if any run has it, otherwise the latest."""
    own = [run for run in runs if run.item == item.runs_of]
    others = sorted({run.item for run in runs})
    require(bool(own) or not runs, f"{path} holds runs of {', '.join(others)} and none of {item.runs_of}")
    scale = FULL if any(run.scale == FULL for run in own) else own[-1].scale if own else FULL
    return sorted((run for run in own if run.scale == scale), key=lambda run: run.seed)


def by_cell(runs: Iterable[RunResult]) -> dict[Cell, list[RunResult]]:
    """Group the runs by panel and curve; those of one cell differ only in their seeds."""
    cells: dict[Cell, list[RunResult]] = {}
    for run in runs:
        cells.setdefault(run.cell, []).append(run)
    return cells


def _run(line: Fields) -> RunResult:
    return RunResult(
        item=line.text("item"),
        panel=line.text("panel"),
        curve=line.text("curve"),
        label=line.text("label"),
        role=line.one_of("role", ("method", "bound")),
        objective=line.text("objective"),
        algorithm=line.text("algorithm"),
        seed=line.whole("seed"),
        scale=line.text("scale"),
        rounds=line.whole("rounds"),
        status=line.one_of("status", ("completed", "diverged")),
        target_accuracy=line.accuracy("target_accuracy"),
        measured=_read_series(line),
        provenance=line.table("provenance", needed=True).values,
    )


def _read_series(line: Fields) -> dict[str, Series]:
    columns = line.table("series", needed=True).values
    rounds = columns.get("round", [])
    whole = isinstance(rounds, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in rounds)
    if not isinstance(rounds, list) or not whole or rounds != sorted(set(rounds)):
        raise FedmmError(f"{line.where} must give 'series.round' as rising whole numbers")
    found = {}
    for name, values in columns.items():
        if not isinstance(values, list) or len(values) != len(rounds):
            raise FedmmError(f"{line.where} must give 'series.{name}' as one value for each of {len(rounds)} rounds")
        pairs = [(t, number) for t, value in zip(rounds, values, strict=True) if (number := finite(value)) is not None]
        found[name] = Series([t for t, _ in pairs], [number for _, number in pairs])
    accuracies = found.get("target_accuracy", Series([], [])).values
    fractions = all(0 <= value <= 1 for value in accuracies)
    require(fractions, f"{line.where} must give 'series.target_accuracy' as fractions in [0, 1]")
    return found
