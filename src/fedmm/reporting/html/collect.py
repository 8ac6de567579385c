"""What a report is about: runs found in folders, with their settings, put together by method."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedmm.core.errors import FedmmError, require
from fedmm.core.options import options_that_affect
from fedmm.reporting.read import Array, Run, Series, read_records, read_run, read_summary

_DEEPEST = 4
"""How far below a folder runs are looked for."""
_ALIKE = options_that_affect("seed", "rounding", "place", "name")
"""Keys of ``[run]`` in which runs of one method may differ."""
_MOST_DIFFERENCES = 2
_TOGETHER = (
    {"map_domain": 1, "map_label": 1, "map_predicted": 1, "map_before": 2, "map_after": 2},
    {"sample_x": 0, "sample_label": 1, "sample_class": 2, "sample_probability": 2},
)
"""Tensors that are of use together alone, one row each, and how many axes they have; 0 for any."""

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Entry:
    """One run of a report.

    tables: its resolved configuration; summary: its ``summary.json``, empty while it has none.
    exhibits: tensors by name, as the run kept them to be looked at; empty for runs that kept none.
    headings: what the numbers of a row are called; empty where they have no names.
    """

    run: Run
    tables: Tables
    summary: Mapping[str, Any]
    exhibits: Mapping[str, Array]
    class_names: tuple[str, ...]
    headings: tuple[str, ...] = ()

    @property
    def guard_events(self) -> list[Mapping[str, Any]]:
        """What the guard did, in order."""
        events = self.summary.get("guard")
        return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []

    @property
    def best_by(self) -> str:
        """The measure by which the run chose its best round."""
        return str(self.tables.get("run", {}).get("best_by", "") or "")

    def clients(self, quantity: str) -> dict[str, Series]:
        """A quantity of each client over the rounds, from columns such as ``drift.site``; of many, their spread."""
        columns = {name: None for record in self.run.records.values() for name in record}
        before = f"{quantity}."
        found = {name.removeprefix(before): self.run.series(name) for name in columns if name.startswith(before)}
        return {name: series for name, series in found.items() if series.rounds}

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
class Material:
    """Everything that a report shows."""

    title: str
    methods: tuple[Method, ...]
    verdicts: tuple[tuple[str, str], ...] = ()
    """Methods by label, and what comparisons found of whether they are better than source only."""

    @property
    def entries(self) -> list[Entry]:
        return [entry for method in self.methods for entry in method.entries]

    @property
    def seeds(self) -> int:
        """The largest number of runs of a method."""
        return max(len(method.entries) for method in self.methods)

    @property
    def holds_rows(self) -> bool:
        """Whether rows of the data, or features of single rows, are among what is shown."""
        return any(name in entry.exhibits for entry in self.entries for name in ("sample_x", "map_after"))

    def measured(self, column: str) -> bool:
        """Whether some run has the column."""
        return any(entry.run.series(column).rounds for entry in self.entries)


def gather(paths: Sequence[Path]) -> Material:
    """The runs in these folders: runs, comparisons, sweeps, or any folder with runs below it."""
    require(bool(paths), "name at least one folder with runs")
    found: dict[Path, Entry] = {}
    for path in paths:
        require("\0" not in str(path) and path.is_dir(), f"{path} is no folder; name the folder of a run or comparison")
        labels = _labels(path)
        places = {name: place for place, name in enumerate(labels)}
        names = {folder.relative_to(path).as_posix(): folder for folder in _run_folders(path)}
        require(bool(names), f"{path} holds no run; name the folder of a run, comparison or sweep")
        for name in sorted(names, key=lambda name: places.get(name, len(places))):
            entry = _entry(names[name])
            label = labels.get(name, entry.run.label)
            found.setdefault(names[name].resolve(), replace(entry, run=replace(entry.run, label=label)))
    methods = _methods(list(found.values()))
    return Material(_title(paths, methods), tuple(methods), tuple(each for path in paths for each in _verdicts(path)))


def _run_folders(path: Path, depth: int = 0) -> Iterator[Path]:
    if _is_run(path):
        yield path
    elif depth < _DEEPEST:
        try:
            below = sorted(each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
        except OSError as problem:
            raise FedmmError(f"{path} cannot be read: {problem.strerror}") from None
        for each in below:
            yield from _run_folders(each, depth + 1)


def _is_run(folder: Path) -> bool:
    if (folder / "experiment.toml").exists():
        return True
    return (folder / "summary.json").exists() and read_summary(folder).get("kind") == "run"


def _labels(path: Path) -> dict[str, str]:
    """The labels that a comparison gives its runs, by their folders; none while it has none."""
    try:
        entries = read_summary(path).get("runs")
    except FedmmError:
        return {}
    listed = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    return {str(each.get("folder")): str(each["label"]) for each in listed if isinstance(each.get("label"), str)}


def _verdicts(path: Path) -> list[tuple[str, str]]:
    """What a comparison says of its methods; nothing where it says nothing."""
    try:
        evidence = read_summary(path).get("evidence")
    except FedmmError:
        return []
    listed = evidence.get("verdicts") if isinstance(evidence, dict) else None
    said = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return [(str(each.get("label")), str(each.get("sentence"))) for each in said]


def _title(paths: Sequence[Path], methods: Sequence[Method]) -> str:
    if len(paths) == 1:
        try:
            title = read_summary(paths[0]).get("title")
        except FedmmError:
            title = None
        if isinstance(title, str) and title:
            return title
    data = {entry.run.data for method in methods for entry in method.entries}
    what = methods[0].label if len(methods) == 1 else f"{len(methods)} methods"
    return f"{what} on {', '.join(sorted(data))}"


def _entry(folder: Path) -> Entry:
    tables = _tables(folder / "experiment.toml")
    finished = (folder / "summary.json").exists()
    return Entry(
        run=read_run(folder) if finished else _unfinished(folder, tables),
        tables=tables,
        summary=read_summary(folder) if finished else {},
        exhibits=_exhibits(folder / "exhibits.safetensors"),
        class_names=_names(folder / "input.json", "class_names"),
        headings=_names(folder / "input.json", "headings"),
    )


def _unfinished(folder: Path, tables: Tables) -> Run:
    """A run that has no summary yet, from its configuration and its rounds."""
    seed = tables.get("run", {}).get("seed", 0)
    rounds = folder / "rounds.jsonl"
    records = read_records(rounds) if rounds.exists() else {}

    def name(section: str) -> str:
        return str(tables.get(section, {}).get("name", "unknown"))

    run = Run(
        folder=folder,
        label=str(tables.get("run", {}).get("label") or _unlabelled(name("algorithm"), name("objective"))),
        algorithm=name("algorithm"),
        objective=name("objective"),
        data=name("data"),
        seed=seed if isinstance(seed, int) else 0,
        status="unfinished",
        target_accuracy=None,
        source_accuracy=None,
        seconds=0.0,
        bytes_up=0,
        bytes_down=0,
        records=records,
    )
    last = {domain: run.series(f"{domain}_accuracy").values[-1:] for domain in ("target", "source")}
    return replace(
        run,
        target_accuracy=last["target"][0] if last["target"] else None,
        source_accuracy=last["source"][0] if last["source"] else None,
        seconds=sum(run.series("seconds").values),
        bytes_up=int(sum(run.series("bytes_up").values)),
        bytes_down=int(sum(run.series("bytes_down").values)),
    )


def _unlabelled(algorithm: str, objective: str) -> str:
    return "source only" if objective == "source_only" else algorithm


def _tables(path: Path) -> Tables:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise FedmmError(f"{path} is not valid TOML; the run that wrote it must be repeated") from None
    return {section: table for section, table in tables.items() if isinstance(table, dict)}


def _exhibits(path: Path) -> dict[str, Array]:
    if not path.exists():
        return {}
    try:
        found = dict(load_file(path))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        raise FedmmError(f"{path} is not a readable safetensors file") from None
    kept: dict[str, Array] = {}
    for group in _TOGETHER:
        parts = {name: found[name] for name in group if name in found}
        rows = {len(each) if each.ndim else -1 for each in parts.values()}
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
    by_label: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        by_label.setdefault(entry.run.label, {}).setdefault(_identity(entry.tables), []).append(entry)
    methods: list[Method] = []
    taken: set[str] = set()
    for label, kinds in by_label.items():
        firsts = [group[0] for group in kinds.values()]
        keys = differing([entry.tables for entry in firsts])
        for number, group in enumerate(kinds.values(), start=1):
            name = label if len(kinds) == 1 else _named_apart(label, group[0], keys, number)
            name = name if name not in taken else f"{name} ({number})"
            taken.add(name)
            ordered = sorted(group, key=lambda entry: entry.run.seed)
            methods.append(Method(name, tuple(replace(e, run=replace(e.run, label=name)) for e in ordered)))
    return methods


def _named_apart(label: str, entry: Entry, keys: Sequence[tuple[str, str]], number: int) -> str:
    if not keys or len(keys) > _MOST_DIFFERENCES:
        return f"{label}, {entry.run.folder.parent.name or number}/{entry.run.folder.name}"
    values = [f"{key} {shown(entry.tables.get(section, {}).get(key))}" for section, key in keys]
    return f"{label}, {', '.join(values)}"


def _identity(tables: Tables) -> str:
    return json.dumps(
        {
            section: {key: value for key, value in table.items() if section != "run" or key not in _ALIKE}
            for section, table in tables.items()
        },
        sort_keys=True,
        default=str,
    )


def differing(configurations: Sequence[Tables]) -> list[tuple[str, str]]:
    """The sections and keys in which configurations differ, but for seeds, names and where they ran."""
    places = {(section, key): None for tables in configurations for section, table in tables.items() for key in table}
    return [
        (section, key)
        for section, key in places
        if (section != "run" or key not in _ALIKE)
        and len({json.dumps(tables.get(section, {}).get(key), default=str) for tables in configurations}) > 1
    ]


def shown(value: object) -> str:
    """A value of a configuration as it would stand in TOML; a dash for one that is not there."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {shown(each)}" for key, each in value.items()) + "}"
    return str(value)
