"""Finished runs and comparisons as values, read from their folders and checked on the way in.

A run folder holds ``summary.json`` and ``rounds.jsonl``. It may hold ``samples.safetensors`` (a few rows of both
domains) and, for points in the plane, ``boundary.safetensors``. A comparison folder holds a ``summary.json`` that lists
its runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import is_name
from fedmm.reporting.fields import Fields, finite, read_json, read_json_lines
from fedmm.reporting.scores import metric_of, shared_metric

Array = NDArray[Any]
_HINT = "give the folder of a finished run or comparison"


@dataclass(frozen=True)
class Samples:
    """A few rows of both domains: images ``[k, C, H, W]`` or points ``[k, 2]``, with their classes ``[k]``."""

    source_x: Array
    source_y: Array
    target_x: Array
    target_y: Array

    @property
    def images(self) -> bool:
        return self.source_x.ndim == 4

    @property
    def points(self) -> bool:
        return self.source_x.shape[1:] == self.target_x.shape[1:] == (2,)


@dataclass(frozen=True)
class Boundary:
    """The predicted probability of class 1 on a grid: ``probability[i, j]`` at x = grid_x[j], y = grid_y[i]."""

    grid_x: Array
    grid_y: Array
    probability: Array


class Series(NamedTuple):
    """One measured quantity over the rounds in which it was measured."""

    rounds: list[int]
    values: list[float]


@dataclass(frozen=True)
class Run:
    """One finished run. Accuracies are fractions in [0, 1], None if they were never measured.

    records: what each round measured, by round, in order. has_target: whether there are target rows, as far as is told.
    """

    folder: Path
    label: str
    algorithm: str
    objective: str
    data: str
    seed: int
    status: str
    target_accuracy: float | None
    source_accuracy: float | None
    seconds: float
    bytes_up: int
    bytes_down: int
    records: Mapping[int, Mapping[str, object]]
    samples: Samples | None = None
    boundary: Boundary | None = None
    has_target: bool = True

    @property
    def method(self) -> str:
        """Algorithm and objective in words; one that adapts nothing is called source only, if there is a target."""
        if self.objective != "source_only":
            return f"{self.algorithm}, {self.objective}"
        return f"source only ({self.algorithm})" if self.has_target else self.algorithm

    @property
    def metric(self) -> str:
        """Of ``METRICS``, what its model is for, if there is no target."""
        return metric_of(self.algorithm, self.objective)

    @property
    def megabytes(self) -> float:
        """Sent in both directions, in 10^6 bytes."""
        return (self.bytes_up + self.bytes_down) / 1e6

    def series(self, name: str) -> Series:
        """A quantity of ``rounds.jsonl`` by its name, over the rounds in which it was measured."""
        return read_series(self.records, name)


@dataclass(frozen=True)
class Comparison:
    """Runs that are drawn and tabulated together; those with one label differ in their seeds alone."""

    folder: Path
    title: str
    runs: tuple[Run, ...]

    @property
    def has_target(self) -> bool:
        """Whether a run has target rows, as far as they say."""
        return any(run.has_target for run in self.runs)

    @property
    def metric(self) -> str:
        """Of ``METRICS``, what methods without a target are judged by, as far as their names tell."""
        return shared_metric(run.metric for run in self.runs)

    def groups(self) -> dict[str, list[Run]]:
        """The runs by label, labels in the order in which they first appear."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.label, []).append(run)
        return groups


def read_series(records: Mapping[int, Mapping[str, object]], name: str) -> Series:
    """A quantity of ``rounds.jsonl`` by its name, without the rounds where it is absent, null or not finite."""
    known = {t: value for t, record in records.items() if (value := finite(record.get(name))) is not None}
    return Series(list(known), list(known.values()))


def last_values(runs: Iterable[Run], name: str) -> list[float]:
    """What a quantity was when it was last measured, of the runs that measured it."""
    return [series.values[-1] for run in runs if (series := run.series(name)).rounds]


def read_kind(folder: Path | str) -> str:
    """What a folder holds: ``run`` or ``comparison``."""
    return _read_summary(Path(folder)).text("kind")


def read_run(folder: Path | str) -> Run:
    """The run in a folder, whole or up to the round in which it stopped."""
    folder = Path(folder)
    summary = _read_summary(folder, kind="run")
    return Run(
        folder=folder,
        label=summary.text("label"),
        algorithm=summary.text("algorithm"),
        objective=summary.text("objective"),
        data=summary.text("data"),
        seed=int(summary.number("seed")),
        status=summary.text("status"),
        target_accuracy=summary.accuracy("target_accuracy"),
        source_accuracy=summary.accuracy("source_accuracy"),
        seconds=summary.number("seconds"),
        bytes_up=int(summary.number("bytes_up")),
        bytes_down=int(summary.number("bytes_down")),
        records=read_records(folder / "rounds.jsonl"),
        samples=_samples(folder / "samples.safetensors"),
        boundary=_boundary(folder / "boundary.safetensors"),
        has_target=_has_target(summary.values.get("clients")),
    )


def _has_target(clients: object) -> bool:
    """Whether some client holds target rows, or none says what it holds."""
    held = [client for client in clients.values() if isinstance(client, dict)] if isinstance(clients, dict) else []
    return not held or any(
        "target" in str(client.get("holds", "target")) and client.get("target_rows") != 0 for client in held
    )


def read_comparison(folder: Path | str) -> Comparison:
    """The comparison in a folder with all its runs, which go by the labels that the comparison gives them."""
    folder = Path(folder)
    summary = _read_summary(folder, kind="comparison")
    listed = summary.values.get("runs")
    if not isinstance(listed, list) or not listed or not all(isinstance(value, dict) for value in listed):
        raise FedmmError(f"{summary.where} must give 'runs' as a list of at least one run")
    entries = [Fields(summary.where, value) for value in listed]
    for entry in entries:
        name = entry.text("folder")
        below = all(map(is_name, name.split("/")))
        require(below, f"{summary.where} must name a folder below its own for each run, not {name!r:.60}")
    runs = [replace(read_run(folder / entry.text("folder")), label=entry.text("label")) for entry in entries]
    return Comparison(folder, summary.text("title"), tuple(runs))


def _read_summary(folder: Path, kind: str | None = None) -> Fields:
    path = folder / "summary.json"
    summary = read_json(path, _HINT)
    given = summary.text("kind")
    require(given in ("run", "comparison"), f"{path} gives kind {given!r}; it must be 'run' or 'comparison'")
    require(kind in (None, given), f"{path} describes a {given}, not a {kind}")
    return summary


def read_summary(folder: Path | str) -> Mapping[str, object]:
    """All that the ``summary.json`` of a folder says."""
    return _read_summary(Path(folder)).values


def read_records(path: Path) -> dict[int, Mapping[str, object]]:
    """The lines of ``rounds.jsonl`` by round. A last line cut short is dropped; a round written twice counts once."""
    records: dict[int, Mapping[str, object]] = {}
    for number, record in read_json_lines(path, _HINT):
        t = record.get("round") if isinstance(record, dict) else None
        if isinstance(t, bool) or not isinstance(t, int):
            raise FedmmError(f"{path} has no whole number 'round' in line {number}")
        records[t] = record
    return dict(sorted(records.items()))


def _samples(path: Path) -> Samples | None:
    if not path.exists():
        return None
    x, y, target_x, target_y = _tensors(path, "source_x", "source_y", "target_x", "target_y")
    fits = len(x) == len(y) and len(target_x) == len(target_y) and x.ndim == target_x.ndim
    require(fits, f"{path} must hold a class for every row, and rows of one shape")
    return Samples(x, y, target_x, target_y) if len(x) or len(target_x) else None


def _boundary(path: Path) -> Boundary | None:
    if not path.exists():
        return None
    grid_x, grid_y, probability = _tensors(path, "grid_x", "grid_y", "probability")
    fits = grid_x.ndim == grid_y.ndim == 1 and probability.shape == (len(grid_y), len(grid_x))
    require(fits and min(probability.shape) > 1, f"{path} must hold one probability for each point of its grid")
    return Boundary(grid_x, grid_y, probability)


def _tensors(path: Path, *names: str) -> list[Array]:
    tensors = read_tensors(path)
    missing = [name for name in names if name not in tensors]
    require(not missing, f"{path} lacks the tensor {missing[0]!r}" if missing else "")
    arrays = [np.asarray(tensors[name]) for name in names]
    require(all(array.ndim > 0 for array in arrays), f"{path} holds a single number where rows are expected")
    return arrays


def read_tensors(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file by name."""
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        raise FedmmError(f"{path} is not a readable safetensors file") from None
