"""What a report is about: runs found in folders, with their settings, put together by method."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.signals.groups import GroupedScores
from fedmm.core.signals.validators import METRICS
from fedmm.reporting.fields import read_toml
from fedmm.reporting.html.configurations import Tables, differing, settings_of, shown
from fedmm.reporting.read import Array, Run, Series, read_records, read_run, read_series, read_summary, read_tensors
from fedmm.reporting.scores import metric_of, shared_metric
from fedmm.reporting.tested import (
    SITE_ROWS,
    Evaluated,
    Ranked,
    read_client_sites,
    read_evaluations,
    read_hits,
    read_ranked,
    read_sites,
    read_tested_round,
)
from fedmm.reporting.tuned import TuningResult, read_tuned

_DEEPEST = 4
"""How far below a folder runs are looked for."""
_MOST_DIFFERENCES = 2
_HINT = "name the folder of a run or comparison"
_TOGETHER = (
    {"map_domain": 1, "map_label": 1, "map_predicted": 1, "map_before": 2, "map_after": 2},
    {"sample_x": 0, "sample_label": 1, "sample_class": 2, "sample_probability": 2},
)
"""Tensors that are of use together alone, one row each, and how many axes they have; 0 for any."""


@dataclass(frozen=True)
class Entry:
    """One run of a report.

    tables: its resolved configuration; summary: its ``summary.json``, empty while it has none.
    tensors: by name, as the run kept them to be looked at; empty for runs that kept none.
    headings: what the numbers of a row are called; empty if they have no names.
    ranked, sites: scores of its test rows, by ``target`` and ``source``, where it kept them; of sites also by
        ``validation``, the rows that those of a deployed run keep from training.
    tested_round: the round whose model ranked, sites, confusions and samples are of; None for the last.
    client_sites: the sites of clients, whose own names may have fewer letters.
    evaluations, broken: what ``fedmm evaluate --group`` wrote into its folder; sentences on files that cannot be read.
    """

    run: Run
    tables: Tables
    summary: Mapping[str, Any]
    tensors: Mapping[str, Array]
    class_names: tuple[str, ...]
    headings: tuple[str, ...] = ()
    ranked: Mapping[str, Ranked] = field(default_factory=dict)
    sites: Mapping[str, GroupedScores] = field(default_factory=dict)
    tested_round: int | None = None
    client_sites: Mapping[str, str] = field(default_factory=dict)
    evaluations: tuple[Evaluated, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def guard_events(self) -> list[Mapping[str, Any]]:
        """What the guard did, in order."""
        return list(_objects(self.summary.get("guard")))

    @property
    def has_target(self) -> bool:
        """Whether there are target rows, as far as the run says."""
        return self.run.has_target

    @property
    def last_round(self) -> int:
        return max(self.run.records, default=0)

    @property
    def data(self) -> str:
        """What it was trained on: a table by its file, other data by their name."""
        file = self.tables.get("data", {}).get("file")
        return Path(file).name if isinstance(file, str) and file else self.run.data

    @property
    def best_by(self) -> str:
        """The measure by which the run chose its best round."""
        return str(self.tables.get("run", {}).get("best_by", "") or "")

    @property
    def metric(self) -> str:
        """Of ``METRICS``, what its model is for, if there is no target."""
        return metric_of(self.run.algorithm, self.run.objective, self.best_by)

    def clients(self, quantity: str) -> dict[str, Series]:
        """A quantity of each client over the rounds, from columns such as ``drift.site``; of many, their spread."""
        columns = {name: None for record in self.run.records.values() for name in record}
        before = f"{quantity}."
        found = {name.removeprefix(before): self.run.series(name) for name in columns if name.startswith(before)}
        return {self.client_sites.get(name, name): series for name, series in found.items() if series.rounds}

    def name_of(self, number: int) -> str:
        """The name of a class."""
        return self.class_names[number] if 0 <= number < len(self.class_names) else str(number)


@dataclass(frozen=True)
class Method:
    """Runs that differ in their seeds alone, under one label."""

    label: str
    entries: tuple[Entry, ...]

    @property
    def runs(self) -> list[Run]:
        return [entry.run for entry in self.entries]

    @property
    def first(self) -> Entry:
        return self.entries[0]


@dataclass(frozen=True)
class Report:
    """Everything that a report shows."""

    title: str
    methods: tuple[Method, ...]
    verdicts: tuple[tuple[str, str], ...] = ()
    """Methods by label, and what comparisons found of whether they are better than source only."""
    tunings: tuple[TuningResult, ...] = ()
    """What tunings tried and chose, of the folders that hold one."""
    told_metric: str = ""
    """Of ``METRICS``, what a comparison or tuning without a target judged by; empty if there is none."""

    @property
    def entries(self) -> list[Entry]:
        return [entry for method in self.methods for entry in method.entries]

    @property
    def seeds(self) -> int:
        """The largest number of runs of a method."""
        return max(len(method.entries) for method in self.methods)

    @property
    def has_target(self) -> bool:
        """Whether a run has target rows, as far as they say."""
        return any(entry.has_target for entry in self.entries)

    @property
    def metric(self) -> str:
        """Of ``METRICS``, what models without a target are judged by: as told, or what some are for."""
        return self.told_metric or shared_metric(entry.metric for entry in self.entries)

    @property
    def holds_rows(self) -> bool:
        """Whether rows of the data, or features of single rows, are among what is shown."""
        return any(name in entry.tensors for entry in self.entries for name in ("sample_x", "map_after"))

    def measured(self, column: str) -> bool:
        """Whether some run has the column."""
        return any(entry.run.series(column).rounds for entry in self.entries)


def name_rows(rows: str, report: Report) -> str:
    """What the rows of ``SITE_ROWS`` are called: without a target there is no source."""
    return SITE_ROWS[rows] if report.has_target or rows != "source" else "test rows"


def collect_runs(paths: Sequence[Path]) -> Report:
    """The runs in these folders: runs, comparisons, sweeps, or any folder with runs below it."""
    require(bool(paths), "name at least one folder with runs")
    entries: dict[Path, Entry] = {}
    abouts, tunings = [], []
    for path in paths:
        require(
            "\0" not in str(path) and path.is_dir(), f"{path} is not a folder; give the folder of a run or comparison"
        )
        abouts.append(_read_about(path))
        labels = _labels(abouts[-1])
        order = {name: position for position, name in enumerate(labels)}
        names = {folder.relative_to(path).as_posix(): folder for folder in _run_folders(path)}
        require(
            bool(names) or not (path / "tune.json").exists(),
            f"{path} holds a tuning in which nothing was judged; `fedmm tune --resume` continues it",
        )
        require(bool(names), f"{path} holds no run; name the folder of a run, comparison or sweep")
        if (path / "tune.json").exists() and abouts[-1].get("status") != "running":
            tunings.append(read_tuned(path))
            names = {name: folder for name, folder in names.items() if name in labels} or names
        for name in sorted(names, key=lambda name: order.get(name, len(order))):
            entry = _entry(names[name])
            label = labels.get(name, entry.run.label)
            entries.setdefault(names[name].resolve(), replace(entry, run=replace(entry.run, label=label)))
    methods = _methods(list(entries.values()))
    verdicts = tuple(verdict for about in abouts for verdict in _verdicts(about))
    metrics = [_read_metric(path) for path in paths]
    return Report(_title(abouts, methods), tuple(methods), verdicts, tuple(tunings), next(filter(None, metrics), ""))


def _run_folders(path: Path, depth: int = 0) -> Iterator[Path]:
    if _is_run(path):
        yield path
    elif depth < _DEEPEST:
        try:
            below = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.is_symlink())
        except OSError as problem:
            raise FedmmError(f"{path} cannot be read: {problem.strerror}") from None
        for folder in below:
            yield from _run_folders(folder, depth + 1)


def _is_run(folder: Path) -> bool:
    if (folder / "experiment.toml").exists():
        return True
    return (folder / "summary.json").exists() and read_summary(folder).get("kind") == "run"


def _read_about(path: Path) -> Mapping[str, Any]:
    """What the summary of a folder says; nothing while there is none."""
    try:
        return read_summary(path)
    except FedmmError:
        return {}


def _read_metric(path: Path) -> str:
    """What a comparison or tuning without a target judged by; empty for others."""
    for name in ("compare.json", "tune.json"):
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            metric = json.loads((path / name).read_text(encoding="utf-8")).get("metric")
            return metric if metric in METRICS else ""
    return ""


def _objects(values: object) -> list[dict[str, Any]]:
    """The objects of a list in JSON; none if it is no list."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _labels(about: Mapping[str, Any]) -> dict[str, str]:
    """The labels that a comparison gives its runs, by their folders."""
    entries = _objects(about.get("runs"))
    return {str(entry.get("folder")): entry["label"] for entry in entries if isinstance(entry.get("label"), str)}


def _verdicts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a comparison says of its methods; nothing if it says nothing."""
    evidence = about.get("evidence")
    listed = _objects(evidence.get("verdicts")) if isinstance(evidence, dict) else []
    return [(str(verdict.get("label")), str(verdict.get("sentence"))) for verdict in listed]


def _title(abouts: Sequence[Mapping[str, Any]], methods: Sequence[Method]) -> str:
    title = abouts[0].get("title") if len(abouts) == 1 else None
    if isinstance(title, str) and title:
        return title
    data = {entry.data for method in methods for entry in method.entries}
    what = methods[0].label if len(methods) == 1 else f"{len(methods)} methods"
    return f"{what} on {', '.join(sorted(data))}"


def _entry(folder: Path) -> Entry:
    tables = _tables(folder / "experiment.toml")
    finished = (folder / "summary.json").exists()
    kept = folder / "exhibits.safetensors"
    tensors = read_tensors(kept) if kept.exists() else {}
    summary = read_summary(folder) if finished else {}
    evaluations, broken = read_evaluations(folder)
    return Entry(
        run=read_run(folder) if finished else _read_unfinished(folder, tables),
        tables=tables,
        summary=summary,
        tensors=_read_tensors(tensors),
        class_names=_names(folder / "input.json", "class_names"),
        headings=_names(folder / "input.json", "headings"),
        ranked=read_ranked(tensors),
        sites={**read_sites(tensors), **read_hits(summary)},
        tested_round=read_tested_round(tensors),
        client_sites=read_client_sites(tensors),
        evaluations=evaluations,
        broken=broken,
    )


def _read_unfinished(folder: Path, tables: Tables) -> Run:
    """A run that has no summary yet, from its configuration and its rounds."""
    seed = tables.get("run", {}).get("seed", 0)
    rounds = folder / "rounds.jsonl"
    records = read_records(rounds) if rounds.exists() else {}

    def name(section: str) -> str:
        return str(tables.get(section, {}).get("name", "unknown"))

    def values(column: str) -> list[float]:
        return read_series(records, column).values

    has_target = tables.get("data", {}).get("labelled_only") is not True
    unlabelled = "source only" if has_target and name("objective") == "source_only" else name("algorithm")
    return Run(
        folder=folder,
        label=str(tables.get("run", {}).get("label") or unlabelled),
        algorithm=name("algorithm"),
        objective=name("objective"),
        data=name("data"),
        seed=seed if isinstance(seed, int) else 0,
        status="unfinished",
        target_accuracy=next(reversed(values("target_accuracy")), None),
        source_accuracy=next(reversed(values("source_accuracy")), None),
        seconds=sum(values("seconds")),
        bytes_up=int(sum(values("bytes_up"))),
        bytes_down=int(sum(values("bytes_down"))),
        records=records,
        has_target=has_target,
    )


def _tables(path: Path) -> Tables:
    tables = read_toml(path, _HINT).values if path.exists() else {}
    return {section: table for section, table in tables.items() if isinstance(table, dict)}


def _read_tensors(found: Mapping[str, Array]) -> dict[str, Array]:
    """What a run kept to be looked at, without tensors that do not fit together."""
    kept: dict[str, Array] = {}
    for group in _TOGETHER:
        parts = {name: found[name] for name in group if name in found}
        rows = {len(part) if part.ndim else -1 for part in parts.values()}
        if len(parts) == len(group) and len(rows) == 1 and all(parts[n].ndim == d for n, d in group.items() if d):
            kept |= parts
    square = {name: found.get(name) for name in ("confusion_source", "confusion_target")}
    return kept | {n: x for n, x in square.items() if x is not None and x.ndim == 2 and x.shape[0] == x.shape[1] > 0}


def _names(path: Path, key: str) -> tuple[str, ...]:
    try:
        names = json.loads(path.read_text(encoding="utf-8"))[key]
        return tuple(map(str, names)) if isinstance(names, list) else ()
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ()


def _methods(entries: Sequence[Entry]) -> list[Method]:
    """Runs of one label and one configuration together; labels with several configurations say what differs."""
    by_label: dict[str, dict[frozenset[object], list[Entry]]] = {}
    for entry in entries:
        settings = frozenset(settings_of(entry.tables).items())
        by_label.setdefault(entry.run.label, {}).setdefault(settings, []).append(entry)
    methods: list[Method] = []
    taken: set[str] = set()
    for label, kinds in by_label.items():
        firsts = [group[0] for group in kinds.values()]
        keys = differing([entry.tables for entry in firsts])
        for number, group in enumerate(kinds.values(), start=1):
            name = label if len(kinds) == 1 else _name_apart(label, group[0], keys, number)
            name = name if name not in taken else f"{name} ({number})"
            taken.add(name)
            ordered = sorted(group, key=lambda entry: entry.run.seed)
            methods.append(Method(name, tuple(replace(e, run=replace(e.run, label=name)) for e in ordered)))
    return methods


def _name_apart(label: str, entry: Entry, keys: Sequence[tuple[str, str]], number: int) -> str:
    if not keys or len(keys) > _MOST_DIFFERENCES:
        return f"{label}, {entry.run.folder.parent.name or number}/{entry.run.folder.name}"
    values = [f"{key} {shown(entry.tables.get(section, {}).get(key))}" for section, key in keys]
    return f"{label}, {', '.join(values)}"
