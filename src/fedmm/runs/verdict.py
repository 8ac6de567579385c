"""Judge whether adapting helped in a single run, by the source-only runs in the folders beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedmm.config.schema import Experiment
from fedmm.config.toml import read_toml
from fedmm.core.errors import FedmmError, count_of
from fedmm.core.files import write_json
from fedmm.core.options import options_that_affect
from fedmm.core.signals.track_record import tell_record
from fedmm.core.signals.validators import ALONE, FEWEST_SEEDS, Verdict, judge_adaptation
from fedmm.core.signals.warning_signs import Measured, find_warning_signs
from fedmm.data.datasets.per_site import KEY as PER_SITE
from fedmm.data.partition import TargetSupervised
from fedmm.runs.compare import require_comparable
from fedmm.runs.evidence import find_difference, is_source_only, read_shift, signals_of, worst_shift
from fedmm.runs.resume import read_completed
from fedmm.runs.run_folder import EXPERIMENT, ROUNDS, SUMMARY, read_input

KEY = "adaptation"
"""The key of the verdict in a run's summary."""
_SIGNS = ("target_information", "source_risk")
_ALIKE = ("data", "partition", "model", "aggregation", "transmission")
_ALIKE_RUN = sorted(options_that_affect("numbers").keys() - {"preset"})  # a preset is spelled out in the other sections
"""Sections and keys of [run] in which a run and its source-only reference must not differ."""

_OWN = ("data", "objective", "algorithm", "guard")
"""Sections in which seeds of one method must not differ."""

Tables = Mapping[str, Mapping[str, Any]]
Summary = Mapping[str, Any]


def judge_run(folder: Path, experiment: Experiment, compare: str) -> dict[str, Any] | None:
    """Judge in one sentence whether adapting helped in a folder's completed run, and store it in the run's summary.

    Return None if the run did not complete, does not adapt, or trained on target labels. The run is compared with
    completed source-only runs of the same data in the folders beside it; other seeds of the same method count too.

    compare: the command that would compare the run's method with source only.
    """
    summary = read_completed(folder)
    if summary is None or not experiment.adapts or isinstance(experiment.partition, TargetSupervised):
        return None
    own, plain = _beside(folder, experiment.tables(), summary)
    if plain:
        shift = worst_shift(plain)
        verdict = judge_adaptation(signals_of(plain), signals_of(own), None if shift is None else read_shift(shift))
        against = f"judged against {count_of(len(plain), 'source-only run')} beside it"
    else:
        verdict = Verdict(None, ALONE)
        against = f"a source-only run of the same data beside it and {FEWEST_SEEDS} seeds of both methods are missing"
    parts = [verdict.sentence, against]
    if verdict.supported is None and (advice := _advice(experiment, compare, min(len(own), len(plain)))):
        parts.append(advice)
    parts.append(tell_record(verdict.supported))
    signs = find_warning_signs(_history(folder), len(read_input(folder)[0]), summary.get("label_shift"))
    if signs:
        parts.append(f"evidence against this run on its own: {', and '.join(signs)}")
    found = {
        "supported": verdict.supported,
        "sentence": "; ".join(parts),
        "source_only_runs": len(plain),
        "warning_signs": signs,
    }
    write_json(folder / SUMMARY, {**summary, KEY: found})
    return found


def _advice(experiment: Experiment, compare: str, seeds: int) -> str:
    """Return which command would judge the run or why none can; empty with enough seeds. seeds: of both methods."""
    try:
        require_comparable(experiment)
    except FedmmError as refusal:
        return f"fedmm compare cannot judge it either: {refusal}"
    return f"`{compare}` trains and judges what is missing" if seeds < FEWEST_SEEDS else ""


def _beside(folder: Path, tables: Tables, summary: Summary) -> tuple[list[Summary], list[Summary]]:
    """Return completed runs of this method, one per seed, this one first, and of the best source-only method."""
    own: dict[object, Summary] = {summary["seed"]: summary}
    plain: dict[str, dict[object, Summary]] = {}
    for other in _other_runs(folder):
        found = _read(other)
        if found is None or _alike(found[0]) != _alike(tables) or find_difference([summary, found[1]]):
            continue
        theirs, told = found
        if is_source_only(told):
            plain.setdefault(json.dumps(theirs["algorithm"], sort_keys=True), {})[told["seed"]] = told
        elif all(theirs[section] == tables[section] for section in _OWN):
            own.setdefault(told["seed"], told)

    def risk(runs: Sequence[Summary]) -> tuple[int, float]:
        values = signals_of(runs).source_risk
        return -min(len(runs), FEWEST_SEEDS), fmean(values) if values else float("inf")

    return list(own.values()), min((list(runs.values()) for runs in plain.values()), key=risk, default=[])


def _other_runs(folder: Path) -> list[Path]:
    try:
        beside = sorted(path.parent for path in folder.resolve().parent.glob(f"*/{SUMMARY}"))
    except OSError:
        return []
    return [path for path in beside if path != folder.resolve()]


def _read(folder: Path) -> tuple[Tables, Summary] | None:
    """Return the tables and summary of a completed run; None if the folder has none, or it is damaged."""
    summary = read_completed(folder)
    if summary is None:
        return None
    try:
        tables: Tables = read_toml(folder / EXPERIMENT)
        signals_of([summary])
        if summary.get("label_shift"):
            read_shift(summary["label_shift"])
        is_source_only(summary)
        _alike(tables)
        find_difference([summary])
        hash(summary["seed"])
        return {name: dict(tables.get(name, {})) for name in (*_OWN, *_ALIKE, "run")}, summary
    except (FedmmError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _alike(tables: Tables) -> dict[str, Any]:
    """Return what comparable runs have in common; scaling per site is left out, since it is a method to compare."""
    sections = {name: {key: value for key, value in tables[name].items() if key != PER_SITE} for name in _ALIKE}
    return {**sections, "run": {key: tables["run"].get(key) for key in _ALIKE_RUN}}


def _history(folder: Path) -> dict[str, Measured]:
    rows = [json.loads(line) for line in (folder / ROUNDS).read_text(encoding="utf-8").splitlines()]
    return {
        name: [(row["round"], float(row[name])) for row in rows if row.get(name) is not None and "round" in row]
        for name in _SIGNS
    }
