"""Choose a setting for an experiment by successive halving over candidates, without target labels."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedmm.config.schema import Experiment
from fedmm.config.schema import experiment as build_experiment
from fedmm.config.sweep_grid import SWEEP
from fedmm.config.toml import read_tables
from fedmm.core.errors import Say, require
from fedmm.core.validation import at_least
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run_folder import claim_folder
from fedmm.runs.sweep import require_stackable
from fedmm.runs.tuning.candidates import TUNE, derive_candidates, derive_labelled_candidates
from fedmm.runs.tuning.criteria import ByTarget, ByValidation, Criterion, metric_of, notes_on_rows, require_measured
from fedmm.runs.tuning.halving import Budget
from fedmm.runs.tuning.rungs import Halving
from fedmm.runs.tuning.state import STATE, Table
from fedmm.training.fingerprint import fingerprint_pair

_MOST_SEEDS = 100


@dataclass(frozen=True)
class Tuning:
    """What :func:`tune` chose, and why.

    best: the experiment to run. label: its name in the table. sentence: why it was chosen.
    adapted: the best candidate that adapts, by the same signals, even if the rule prefers source only; None if all were
    ruled out, nothing was judged, or there is no target.
    table: a row per candidate, with ``candidate``, the last ``rung`` it ran in, its ``rounds`` there, ``signals`` (by
    validator, the mean, lowest and highest over seeds), ``rank``, ``veto`` (why it was ruled out, or empty) and more.
    notes: on the rows that judged, and on what the time did not allow. folder: with all files; None if none were kept.
    """

    best: Experiment
    label: str
    sentence: str
    adapted: Experiment | None
    table: list[Table]
    notes: list[str]
    folder: Path | None


def tune(
    experiment: Experiment | Mapping[str, Any] | Path | str,
    *,
    objectives: Sequence[str] = (),
    metric: str = "",
    minutes: float | None = None,
    seeds: int = 3,
    eta: int = 2,
    out: Path | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    say: Say | None = None,
    title: str = "",
) -> Tuning:
    """Choose a setting for an experiment without target labels, or without a target.

    All candidates run for a third of the rounds; the best 1/``eta`` of them run full length with several seeds (all of
    them, if there are too few rounds or candidates to cut). Target labels are never used: the best mean rank over
    ``target_information``, ``target_bnm`` and ``source_risk`` goes on, unless a run diverged or collapsed. Among the
    half of the finalists whose predictions agree best, between near target rows or seeds, the best mean rank wins.
    Source only and the experiment as given always reach the end. Source only also wins if the target's class mix is
    reliably estimated to differ, if it agrees better and has a lower source risk, or with fewer than three seeds.

    If all rows have labels and there is no target, the mean over seeds of a metric on rows set aside decides, and plain
    federated averaging and the experiment as given always reach the end.

    experiment: an experiment, its tables, or its file, which may have a ``[tune]`` table with lists of values to try.
    objectives: to try if there is no such table; by default the experiment's own.
    metric: ``accuracy``, ``auc`` or ``worst_site``, without a target; by default what the experiment trains for.
    minutes: a time budget, kept by running fewer candidates or rounds. seeds: of each finalist.
    out: the folder for all runs, ``tune.json`` and ``tuned.toml``; without it nothing is kept.
    resume: continue a tuning in that folder. say: called with each line of progress. title: for reports.
    """
    tables, name = _read(experiment)
    require(out is None or isinstance(out, str | Path), f"out must be the name of a folder, not {out!r:.60}")
    require(say is None or callable(say), f"say must be a function that takes a line of text, not {say!r:.60}")
    require_limits(seeds, minutes, eta)
    named = not isinstance(objectives, str) and all(isinstance(each, str) for each in objectives)
    require(named, f"objectives must be a list of names such as ['dann', 'cdan'], not {objectives!r}")
    own = build_experiment({section: table for section, table in tables.items() if section not in (TUNE, SWEEP)})
    candidates, criterion = plan_tuning(tables, own, objectives, metric)
    require(out is not None or not resume, "resume needs the folder of the tuning; name it with out")
    require_stackable([*candidates.values()])
    cache = DataCache()
    pair = cache.pair(own, torch.device("cpu"))
    require_measured(criterion, prepare(next(reversed(candidates.values())), cache).measures, pair)
    notes = notes_on_rows(criterion, pair)
    budget = Budget(None if minutes is None else 60.0 * minutes)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        tell = say or (lambda line: None)
        halving = Halving(
            candidates, Path(folder), seeds, eta, budget, progress=progress, say=tell, criterion=criterion
        )
        with claim_folder(halving.folder, STATE, overwrite=overwrite, resume=resume) as going_on:
            halving.open(title or name, resume=going_on, notes=notes, fingerprint=fingerprint_pair(pair))
            halving.run()
            choice = halving.close()
    return Tuning(
        candidates[choice.label],
        choice.label,
        choice.sentence,
        candidates[choice.adapted] if choice.adapted else None,
        halving.state.table,
        [*halving.state.notes, *filter(None, [halving.state.ended])],
        None if out is None else Path(out),
    )


def plan_tuning(
    tables: Mapping[str, Any], own: Experiment, objectives: Sequence[str] = (), metric: str = ""
) -> tuple[dict[str, Experiment], Criterion]:
    """Return an experiment's candidates and what judges them. tables: with ``[tune]``, if any; own: without it."""
    if not own.labelled_only:
        require(not metric, "--metric is for experiments without a target (data.labelled_only); leave it out")
        return derive_candidates(tables, objectives), ByTarget()
    criterion = ByValidation(metric_of(own, metric))
    return derive_labelled_candidates(tables, criterion.metric, objectives), criterion


def require_limits(seeds: int, minutes: float | None, eta: int) -> None:
    """Refuse numbers of seeds and minutes, and an ``eta``, that no tuning can have."""
    require(_is_number(seeds, int), f"seeds must be a whole number, not {seeds!r}")
    require(1 <= seeds <= _MOST_SEEDS, f"seeds must be from 1 to {_MOST_SEEDS}, not {seeds}")
    at_least("eta", eta, 2)
    fine = minutes is None or (_is_number(minutes, int | float) and math.isfinite(minutes) and minutes > 0)
    require(fine, f"minutes must be above 0, not {minutes}; leave it out for no limit")


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _read(given: Experiment | Mapping[str, Any] | Path | str) -> tuple[Mapping[str, Any], str]:
    if isinstance(given, Experiment):
        return given.tables(), given.label
    fine = isinstance(given, Mapping | Path | str)
    require(fine, f"tune needs an experiment, its tables, or its file, not {type(given).__name__} {given!r:.60}")
    return (given, "tuning") if isinstance(given, Mapping) else (read_tables(Path(given)), Path(given).stem)
