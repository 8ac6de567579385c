"""Compare methods on a user's own data: train all of them alike, and judge them without target labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from fedmm.algorithms import ALGORITHMS
from fedmm.config.schema import SOURCE_ONLY, Experiment, experiment
from fedmm.config.sweep_grid import SWEEP, options_for
from fedmm.core.errors import Say, require, unknown
from fedmm.core.files import write_json
from fedmm.core.options import DEFAULT_VALIDATOR
from fedmm.core.signals.label_shift import LabelShift
from fedmm.core.signals.validators import BELIEVED, CANNOT_JUDGE, NOT_SUPPORTED, VALIDATORS, Verdict, judge_adaptation
from fedmm.data.datasets.per_site import KEY as PER_SITE
from fedmm.data.datasets.per_site import PerSite
from fedmm.data.partition import TargetSupervised
from fedmm.objectives import OBJECTIVES
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.evidence import read_shift, signals_of, worst_shift
from fedmm.runs.resume import read_completed
from fedmm.runs.sweep import DivergedRuns, run_sweep
from fedmm.runs.tuning.candidates import PLAIN, WEIGHTED, list_labelled_methods
from fedmm.runs.tuning.criteria import ByValidation, metric_of, notes_on_rows, require_measured
from fedmm.runs.tuning.ranking import Measured

PER_SITE_LABEL = "per-site standardisation"
_NONE = "source_only"
_BASELINE, _FEDMM, _RESTRAINED = "fedavg_gda", "fedmm", "fedmm_restrained"
_MOST_SEEDS = 100
ADAPTING = ("dann", "cdan", "mdd")
"""The objectives that are compared by default."""
_TESTED = {
    "accuracy": ("source_accuracy",),
    "auc": ("source_auroc",),
    "worst_site": ("source_worst_accuracy", "source_accuracy"),
}
"""By metric, the columns measured on test rows, which are shown but decide nothing."""
_TEST_ROWS = "source columns are measured on test rows, which chose nothing"


@dataclass(frozen=True)
class Candidate:
    """A method to compare: its label in tables, and one experiment per seed."""

    label: str
    experiments: tuple[Experiment, ...]


def derive_candidates(
    tables: Mapping[str, Any], objectives: Sequence[str] = ADAPTING, seeds: int = 3
) -> list[Candidate]:
    """Return source only, per-site standardisation, and FedAvgGDA and FedMM with each objective, for the file's data.

    All share the file's data, clients, model, rounds and batches, consecutive seeds from the file's on, and those of
    the file's options that their objective and algorithm have. FedMM is the file's own algorithm if that is ``fedmm``,
    else ``fedmm_restrained``; any other algorithm of the file is compared as well. No run stops early.
    """
    given = _read(tables, seeds)
    require_comparable(given)
    chosen = list(dict.fromkeys(objectives))
    require(bool(chosen), "--objectives must name at least one objective, for example dann")
    for name in chosen:
        if name not in OBJECTIVES:
            raise unknown("objective in --objectives", name, OBJECTIVES)
        require(name != _NONE, f"--objectives need not name {_NONE}, which is always compared; leave it out")
        require(OBJECTIVES[name].adapts, f"--objectives must name objectives that adapt to the target; {name} does not")
    fedmm = given.algorithm.name if given.algorithm.name in (_FEDMM, _RESTRAINED) else _RESTRAINED
    methods = list(dict.fromkeys((_BASELINE, fedmm, given.algorithm.name)))
    return [
        _candidate(tables, seeds, SOURCE_ONLY, _loss(tables, _NONE), _BASELINE),
        _candidate(tables, seeds, PER_SITE_LABEL, _loss(tables, _NONE), _BASELINE, per_site=True),
        *(
            _candidate(tables, seeds, _label(method, objective), _loss(tables, objective), method)
            for method in methods
            for objective in chosen
        ),
    ]


def derive_labelled(tables: Mapping[str, Any], metric: str, seeds: int) -> list[Candidate]:
    """Return plain federated averaging, and the file's objective with its own algorithm and those for the metric.

    For the metric ``auc`` (a rare class), also return the objective ``auc``, and federated averaging with balanced
    class weights.
    """
    given = _read(tables, seeds)
    require_no_noise(given)
    objective = given.objective.name
    require(
        not given.objective.adapts, f"{objective} adapts to a target, and the data has none; use source_only or auc"
    )
    plain = _loss(tables, _NONE)
    weighted = {PLAIN: "none", WEIGHTED: "balanced"}
    averaging = (
        {label: {**plain, "class_weights": by} for label, by in weighted.items()} if metric == "auc" else {PLAIN: plain}
    )
    return [
        *(_candidate(tables, seeds, label, loss, _BASELINE) for label, loss in averaging.items()),
        *(
            _candidate(tables, seeds, _label(method, loss["name"]), loss, method)
            for loss, method in list_labelled_methods(tables, given, metric)
            if (method, loss["name"]) != (_BASELINE, _NONE)
        ),
    ]


def _read(tables: Mapping[str, Any], seeds: int) -> Experiment:
    require(SWEEP not in tables, "a file with a [sweep] table is for `fedmm sweep`; remove it to compare methods")
    require(1 <= seeds <= _MOST_SEEDS, f"--seeds must be from 1 to {_MOST_SEEDS}, not {seeds}")
    return experiment(tables)


def _label(algorithm: str, objective: str) -> str:
    return algorithm if objective == _NONE else f"{algorithm} + {objective}"


def _loss(tables: Mapping[str, Any], objective: str) -> dict[str, Any]:
    """Return the ``[objective]`` section for this objective, with those of the file's options that it has."""
    return options_for(tables, "objective", objective, OBJECTIVES)


def _candidate(
    tables: Mapping[str, Any],
    seeds: int,
    label: str,
    objective: Mapping[str, Any],
    algorithm: str,
    *,
    per_site: bool = False,
) -> Candidate:
    changed = dict(tables)
    changed["objective"] = objective
    changed["algorithm"] = options_for(tables, "algorithm", algorithm, ALGORITHMS)
    changed["data"] = {**tables["data"], **({PER_SITE: True} if per_site else {})}
    run = {**tables.get("run", {}), "label": label, "best_by": DEFAULT_VALIDATOR, "stop_by": ""}
    first = experiment(tables).run.seed
    return Candidate(
        label, tuple(experiment({**changed, "run": {**run, "seed": seed}}) for seed in range(first, first + seeds))
    )


def require_comparable(given: Experiment) -> None:
    """Refuse an experiment that trains on target labels, leaves nothing to judge by, or already scales per site."""
    require(
        not isinstance(given.partition, TargetSupervised),
        "target_supervised learns from the target's labels, which compare never looks at; use another partition",
    )
    require_no_noise(given)
    require(given.run.probe_rows > 0, "run.probe_rows must be above 0: the verdict depends on those target rows")
    require(
        not isinstance(given.data, PerSite),
        f"data.{PER_SITE} is one of the methods that are compared; leave it out of the file",
    )


def require_no_noise(given: Experiment) -> None:
    """Refuse noise on updates: what is measured on the clients' rows would leave the clients without any."""
    require(
        not given.transmission.private,
        f"transmission {given.transmission.name!r} adds noise to updates, but the metrics that the verdict depends on "
        'are measured on the clients\' rows without noise; compare with transmission.name = "exact", then train the '
        "chosen one with noise",
    )


COMPARED = "compare.json"
_FORMAT = "fedmm-compare-1"
_RANKED_BY = BELIEVED[0]

Table = dict[str, Any]


def compare_methods(
    tables: Mapping[str, Any],
    folder: Path,
    *,
    title: str,
    objectives: Sequence[str] | None = None,
    metric: str = "",
    seeds: int = 3,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
    say: Say = lambda line: None,
) -> Table | None:
    """Train every candidate with every seed, judge them, write ``compare.json``, and return its content.

    objectives: those to adapt with, ``ADAPTING`` by default. metric: one of ``METRICS``, for experiments without a
    target; by default what the experiment trains for.

    Return None after Ctrl-C: what was done is kept, and ``resume`` continues it. Diverged runs count in the verdict.
    """
    given = experiment({section: table for section, table in tables.items() if section != SWEEP})
    criterion, cache, notes = None, DataCache(), list[str]()
    if given.labelled_only:
        require(
            objectives is None, "--objectives is for experiments with a target, and this one has none; leave it out"
        )
        criterion = ByValidation(metric_of(given, metric))
        candidates = derive_labelled(tables, criterion.metric, seeds)
        pair = cache.pair(given, torch.device("cpu"))
        require_measured(criterion, prepare(candidates[0].experiments[0], cache).measures, pair)
        notes = notes_on_rows(criterion, pair)
        notes += [] if pair.source_validation is pair.source_test else [_TEST_ROWS]
    else:
        require(not metric, "--metric is for experiments without a target (data.labelled_only); leave it out")
        candidates = derive_candidates(tables, ADAPTING if objectives is None else objectives, seeds)
    first = candidates[0].experiments[0]
    experiments = [experiment for candidate in candidates for experiment in candidate.experiments]
    try:
        summary = run_sweep(
            experiments, folder, title=title, overwrite=overwrite, resume=resume, progress=progress, say=say
        )
    except DivergedRuns as diverged:
        summary = diverged.summary
    if summary["status"] != "completed":
        return None
    names = {(run["label"], run["seed"]): run["folder"] for run in summary["runs"]}
    tested = _TESTED[criterion.metric] if criterion else ()
    entries = [_entry(candidate, folder, names, tested) for candidate in candidates]
    shift = None if criterion else _label_shift([folder / name for name in entries[0]["runs"]])
    judged = (
        judge_labelled(entries, criterion)
        if criterion
        else judge_candidates(entries, None if shift is None else read_shift(shift))
    )
    table = {
        "format": _FORMAT,
        "title": title,
        "data": first.data.name,
        "rounds": first.run.rounds,
        "seeds": [experiment.run.seed for experiment in candidates[0].experiments],
        "candidates": entries,
        "label_shift": shift,
        "verdict": judged,
        "target_labels": None if criterion else labels_say(entries, judged),
        **({"metric": criterion.metric, "shown": [*criterion.signals, *tested]} if criterion else {}),
        "notes": notes,
        "versions": summary["versions"],
        "hardware": summary["hardware"],
    }
    write_json(folder / COMPARED, table)
    return table


def _entry(
    candidate: Candidate, folder: Path, names: Mapping[tuple[str, int], str], tested: Sequence[str] = ()
) -> Table:
    """Return what a candidate's runs measured after their last round, by column; None for each run that diverged.

    tested: columns to include besides those of the validators.
    """
    first = candidate.experiments[0]
    runs = [names[candidate.label, experiment.run.seed] for experiment in candidate.experiments]
    summaries = [read_completed(folder / run) for run in runs]
    columns = dict.fromkeys([*(validator.column for validator in VALIDATORS.values()), *tested])
    measured = {
        column: [None if summary is None else summary.get(column) for summary in summaries] for column in columns
    }
    return {
        "label": candidate.label,
        "algorithm": first.algorithm.name,
        "objective": first.objective.name,
        "runs": runs,
        "diverged": sum(summary is None for summary in summaries),
        "measures": {column: values for column, values in measured.items() if any(v is not None for v in values)},
    }


def judge_labelled(entries: Sequence[Table], criterion: ByValidation) -> Table:
    """Return the method that is best on the rows set aside; ``supported`` is None, since nothing adapts."""
    field = {entry["label"]: [_measure(values, criterion) for values in _by_seed(entry)] for entry in entries}
    vetoes, ranks = criterion.judge(field, 0)
    best, *others = [label for label in ranks if label not in vetoes] or [entries[0]["label"]]
    if best in vetoes:
        return {"supported": None, "use": best, "sentence": f"No method can be judged; {best}: {vetoes[best]}."}
    beside = f"; the next is {others[0]}, {criterion.compare(field, others[0], best)}" if others else ""
    sentence = f"Of {len(entries)} methods {best} is best on rows set aside: {criterion.tell(field[best])}{beside}."
    return {"supported": None, "use": best, "sentence": sentence}


def _measure(values: Table, criterion: ByValidation) -> Measured:
    columns = {name: values.get(VALIDATORS[name].column) for name in criterion.signals}
    known = {name: float(value) for name, value in columns.items() if value is not None and math.isfinite(value)}
    if criterion.signals[0] in known:
        return Measured(known)
    return Measured(diverged=all(value is None for value in values.values()))


def _label_shift(folders: Sequence[Path]) -> Table | None:
    """Return the source-only models' estimate with the largest upper bound; None if there is none."""
    worst = worst_shift(list(filter(None, map(read_completed, folders))))
    return None if worst is None else dict(worst)


def judge_candidates(entries: Sequence[Table], shift: LabelShift | None) -> Table:
    """Judge each candidate, store the verdict in its entry, and return the verdict on all of them."""
    source_only, *others = entries
    for entry in others:
        verdict = _judge_one(source_only, entry, shift)
        entry["verdict"] = {"supported": verdict.supported, "sentence": verdict.sentence}
    ranked = sorted(others, key=_rank, reverse=True)
    supported = [entry for entry in ranked if entry["verdict"]["supported"]]
    if supported:
        best = supported[0]
        among = "" if len(supported) == 1 else f", of {len(supported)} that it supports the highest in {_RANKED_BY}"
        return {"supported": True, "use": best["label"], "sentence": f"Use {best['label']}{among}: {_reason(best)}."}
    open_ones = [entry for entry in ranked if entry["verdict"]["supported"] is None]
    nearest = (open_ones or ranked)[0]
    head = CANNOT_JUDGE if open_ones else NOT_SUPPORTED
    sentence = f"{head[0].upper()}{head[1:]}; use {SOURCE_ONLY}. {nearest['label']}: {_reason(nearest)}."
    supported_at_all = None if open_ones else False
    return {"supported": supported_at_all, "use": SOURCE_ONLY, "nearest": nearest["label"], "sentence": sentence}


def _reason(entry: Table) -> str:
    """Return the reason for a candidate's verdict, without the standard start of the sentence."""
    sentence: str = entry["verdict"]["sentence"]
    for head in (NOT_SUPPORTED, CANNOT_JUDGE):
        sentence = sentence.removeprefix(f"{head}: ")
    return sentence


def _judge_one(source_only: Table, entry: Table, shift: LabelShift | None) -> Verdict:
    for one in (source_only, entry):
        if one["diverged"]:
            supported = None if one is source_only else False
            return Verdict(supported, f"{one['diverged']} of {len(one['runs'])} runs of {one['label']} diverged")
    return judge_adaptation(signals_of(_by_seed(source_only)), signals_of(_by_seed(entry)), shift)


def _by_seed(entry: Table) -> list[Table]:
    """Return what was measured as one table per run."""
    measures = entry["measures"]
    return [{column: values[seed] for column, values in measures.items()} for seed in range(len(entry["runs"]))]


def _rank(entry: Table) -> float:
    values = entry["measures"].get(_RANKED_BY, [None])
    return float("-inf") if None in values else fmean(values)


def labels_say(entries: Sequence[Table], verdict: Table) -> str | None:
    """Say whether target labels, which chose nothing, agree with the verdict; None if there are none."""
    accuracies = {entry["label"]: _drop_missing(entry["measures"].get("target_accuracy", [])) for entry in entries}
    accuracies = {label: values for label, values in accuracies.items() if values}
    other = verdict["use"] if verdict["supported"] else verdict["nearest"]
    if SOURCE_ONLY not in accuracies or other not in accuracies:
        return None
    before, after = accuracies[SOURCE_ONLY], accuracies[other]
    better, worse = min(after) > max(before), max(after) < min(before)
    if not better and not worse:
        word = "cannot tell the two apart"
    elif verdict["supported"] is None:
        word = "could have judged"
    else:
        word = "agree" if better == verdict["supported"] else "disagree"
    oracle = max(accuracies, key=lambda label: fmean(accuracies[label]))
    return (
        f"The target's labels, which chose nothing here, {word}: {other} has {fmean(after):.1%} of the target right, "
        f"{SOURCE_ONLY} {fmean(before):.1%}; the oracle's choice is {oracle}, {fmean(accuracies[oracle]):.1%}."
    )


def _drop_missing(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]
