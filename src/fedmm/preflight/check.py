"""Check an experiment before it runs: its data, clients and network, and the resources that it will need."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedmm.config.schema import Experiment
from fedmm.core.errors import require
from fedmm.data.domains import DataSet, DomainPair, Labelled, Preview
from fedmm.data.labels import UNLABELLED
from fedmm.data.partition import Share
from fedmm.preflight.data_checks import check_data
from fedmm.preflight.estimate import ResourceEstimate, estimate, faster_alone
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run import choose_engine

MOST_PICTURES = 600
"""Pictures read from a data set that has more."""
_ROWS_LOOKED_AT = 2000
_WORTH_SAYING = 1.2
_MANY_CLIENTS = 20
_LONG_RUN = 2 * 3600.0
"""Seconds above which a run is worth a warning."""

Level = Literal["warning", "note"]


@dataclass(frozen=True)
class Finding:
    """A message for the user: a warning asks for a decision, a note does not."""

    level: Level
    text: str


@dataclass(frozen=True)
class PartOfData:
    """A part of the data: its rows, their shape and dtype, statistics of a sample's values, and the labelled rows."""

    name: str
    rows: int
    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    mean: float
    deviation: float
    labelled: int


@dataclass(frozen=True)
class ClientRows:
    """The number of rows of a client; classes: its source rows per class."""

    name: str
    source: int
    target: int
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Checked:
    """The result of a check. looked_at: the pictures read and the total; (0, 0) if everything was read."""

    experiment: Experiment
    class_names: tuple[str, ...]
    parts: tuple[PartOfData, ...]
    clients: tuple[ClientRows, ...]
    engine: str
    needs: ResourceEstimate
    findings: tuple[Finding, ...]
    looked_at: tuple[int, int]
    seconds: float

    @property
    def warnings(self) -> list[str]:
        """The findings that ask for a decision."""
        return [finding.text for finding in self.findings if finding.level == "warning"]

    def table(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        experiment = self.experiment
        return {
            "format": "fedmm-check-1",
            "data": experiment.data.name,
            "partition": experiment.partition.name,
            "model": experiment.model.name,
            "objective": experiment.objective.name,
            "algorithm": experiment.algorithm.name,
            "engine": self.engine,
            "rounds": experiment.run.rounds,
            "class_names": list(self.class_names),
            "parts": [asdict(part) for part in self.parts],
            "clients": [asdict(client) for client in self.clients],
            "needs": {**asdict(self.needs), "memory": self.needs.memory},
            "findings": [asdict(finding) for finding in self.findings],
            "pictures_read": self.looked_at[0],
            "pictures": self.looked_at[1],
            "seconds": self.seconds,
        }


def check(experiment: Experiment, most_pictures: int = MOST_PICTURES) -> Checked:
    """Load the data, or some of its pictures, build everything and time local steps; raise if it cannot run."""
    began = time.perf_counter()
    findings = []
    if experiment.run.device not in ("cpu", "auto"):
        findings += _device(experiment.run.device)
    here = replace(experiment, run=replace(experiment.run, device="cpu"))
    with _preview(experiment.data, most_pictures) as part:
        looked = replace(here, data=part.data)
        pair = part.data.load()
    dealt = looked.partition.seen(pair)
    require(len(dealt.source.x) > 0, "the source has no rows to train on")
    shares = looked.partition.split(dealt, looked.run.seed)
    adaptation = prepare(looked, _Loaded(pair))
    engine, _ = choose_engine(looked, adaptation)
    tensors = [rows for one in _parts(pair).values() for rows in (one.x, one.y)]
    if looked.run.threads:
        torch.set_num_threads(looked.run.threads)
    needs = estimate(adaptation, tensors, looked.run.evaluate_every, stacked=engine == "batched")
    if not looked.run.threads and faster_alone(adaptation, needs.step) > _WORTH_SAYING:
        findings.append(Finding("note", "a step is faster on one thread on this CPU: set run.threads = 1"))
    needs = _scale_to_all(needs, part, -(-looked.run.rounds // looked.run.evaluate_every))
    findings += _long(experiment, needs.run, len(shares))
    found = check_data(looked, pair, dealt, shares, whole=part.files >= part.of)
    findings += [Finding("warning", text) for text in found.warnings]
    findings += [Finding("note", text) for text in [*_partial(part), *pair.notes, *found.notes]]
    return Checked(
        experiment=experiment,
        class_names=tuple(pair.class_names),
        parts=tuple(_describe(name, rows) for name, rows in _parts(pair).items()),
        clients=tuple(_client(share, dealt) for share in shares),
        engine=engine,
        needs=needs,
        findings=tuple(sorted(findings, key=lambda finding: finding.level == "note")),
        looked_at=(part.files, part.of) if part.files < part.of else (0, 0),
        seconds=time.perf_counter() - began,
    )


def _preview(data: DataSet, most: int) -> AbstractContextManager[Preview]:
    preview: Callable[[int], AbstractContextManager[Preview]] | None = getattr(data, "preview", None)
    return nullcontext(Preview(data)) if preview is None else preview(most)


class _Loaded(DataCache):
    """A cache with data that is already loaded."""

    def __init__(self, pair: DomainPair) -> None:
        super().__init__()
        self._pair = pair

    def pair(self, experiment: Experiment, device: torch.device) -> DomainPair:
        return self._pair


def _device(device: str) -> list[Finding]:
    kind = device.partition(":")[0]
    available = torch.cuda.is_available() if kind == "cuda" else True
    if not available:
        return [
            Finding(
                "warning", f"run.device is {device!r}, which this machine does not have; the machine that runs it must"
            )
        ]
    return []


def _long(experiment: Experiment, seconds: float, clients: int) -> list[Finding]:
    """Warn if the run would take hours and is to run on this CPU."""
    device = experiment.run.device
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    if seconds <= _LONG_RUN or not on_cpu:
        return []
    frozen = ", a backbone that is frozen (model.frozen_blocks or model.frozen, with data.augment = false)"
    pictures = frozen if experiment.model.name in ("mobilenet_v2", "backbone") else ""
    many = ", a smaller run.participation" if clients * experiment.run.participation > _MANY_CLIENTS else ""
    text = (
        f"the run would take about {seconds / 3600:.0f} hours on this CPU; what shortens it: a GPU{pictures}{many}, a "
        "smaller network or smaller pictures, fewer run.rounds or algorithm.local_steps, a larger run.evaluate_every"
    )
    return [Finding("warning", text)]


def _partial(part: Preview) -> list[str]:
    if part.files >= part.of:
        return []
    return [f"{part.files} of {part.of} pictures were read; counts cover these, memory and time cover all"]


def _parts(pair: DomainPair) -> dict[str, Labelled]:
    found = {
        "source": pair.source,
        "source validation": pair.source_validation,
        "source test": pair.source_test,
        "target": pair.target,
        "target test": pair.target_test,
    }
    return {name: rows for name, rows in found.items() if rows is not None and len(rows.x)}


def _describe(name: str, rows: Labelled) -> PartOfData:
    spread = torch.linspace(0, len(rows.x) - 1, min(len(rows.x), _ROWS_LOOKED_AT)).round().long()
    values: Tensor = rows.x[spread].double()
    return PartOfData(
        name=name,
        rows=len(rows.x),
        shape=tuple(rows.x.shape[1:]),
        dtype=str(rows.x.dtype).removeprefix("torch."),
        low=float(values.min()),
        high=float(values.max()),
        mean=float(values.mean()),
        deviation=float(values.std(correction=0)),
        labelled=int((rows.y != UNLABELLED).sum()),
    )


def _client(share: Share, pair: DomainPair) -> ClientRows:
    counts = torch.bincount(pair.source.y[share.source], minlength=pair.classes)
    return ClientRows(share.name, len(share.source), len(share.target), tuple(counts.tolist()))


def _scale_to_all(needs: ResourceEstimate, part: Preview, rounds: int) -> ResourceEstimate:
    """Scale the estimates for data and evaluation up to all pictures if only some were read."""
    if part.files >= part.of:
        return needs
    more = part.of / part.files
    evaluation, training = more * needs.evaluation, needs.run - rounds * needs.evaluation
    return replace(needs, data=round(more * needs.data), evaluation=evaluation, run=training + rounds * evaluation)
