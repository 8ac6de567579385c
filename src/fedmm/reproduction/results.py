"""Finished runs of the paper's experiments, read from a file of JSON lines: one run a line, written as they end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmm.core.errors import FedmmError, require
from fedmm.reporting.fields import Fields, finite
from fedmm.reporting.read import Series
from fedmm.reproduction.item import Cell, Item

FULL = "full"
"""The scale of the paper's own experiments."""


@dataclass(frozen=True)
class PaperRun:
    """One finished run. Its accuracy is a fraction in [0, 1], None where it was never measured.

    role: ``method``, or ``bound`` for a run that only says what is possible.
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
        """A quantity by its name, empty where it was never measured."""
        return self.measured.get(name, Series([], []))


def read_results(path: Path | str) -> list[PaperRun]:
    """The runs of a file. Of lines for one panel, curve, seed and scale the last counts; a torn last one is dropped."""
    path = Path(path)
    lines = [(number, line) for number, line in enumerate(_bytes(path).split(b"\n"), start=1) if line.strip()]
    found: dict[tuple[object, ...], PaperRun] = {}
    for number, line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            if number == lines[-1][0]:
                break
            raise FedmmError(f"{path} is not valid JSON in line {number}") from None
        require(isinstance(values, dict), f"{path} must hold a JSON object in line {number}")
        run = _run(Fields(f"{path}, line {number},", values))
        found[run.item, run.panel, run.curve, run.seed, run.scale] = run
    return list(found.values())


def runs_of_item(runs: Sequence[PaperRun], item: Item, path: Path) -> list[PaperRun]:
    """The runs that an item shows, all of one scale: the full one where any run has it, else the latest."""
    name = item.runs_of or item.name
    own = [run for run in runs if run.item == name]
    others = sorted({run.item for run in runs})
    require(bool(own) or not runs, f"{path} holds runs of {', '.join(others)} and none of {name}")
    scale = FULL if any(run.scale == FULL for run in own) else own[-1].scale if own else FULL
    return sorted((run for run in own if run.scale == scale), key=lambda run: run.seed)


def by_cell(runs: Iterable[PaperRun]) -> dict[Cell, list[PaperRun]]:
    """The runs by panel and curve; those of one cell differ in their seeds alone."""
    found: dict[Cell, list[PaperRun]] = {}
    for run in runs:
        found.setdefault(run.cell, []).append(run)
    return found


def _run(line: Fields) -> PaperRun:
    return PaperRun(
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
        measured=_measured(line),
        provenance=_object(line, "provenance"),
    )


def _measured(line: Fields) -> dict[str, Series]:
    columns = _object(line, "series")
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


def _object(line: Fields, name: str) -> Mapping[str, object]:
    value = line.values.get(name)
    if not isinstance(value, dict):
        raise FedmmError(f"{line.where} must give {name!r} as a JSON object, not {value!r:.60}")
    return value


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FedmmError(f"{path} is missing; `fedmm reproduce` writes it as its runs end") from None
    except OSError as error:
        raise FedmmError(f"{path} cannot be read: {error.strerror}") from None
