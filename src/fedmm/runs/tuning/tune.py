"""From an experiment and no target labels to a setting: successive halving over candidates, judged by validators."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmm.config.schema import Experiment
from fedmm.config.toml import read_tables
from fedmm.core.errors import Say, require
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.sweep import require_stackable
from fedmm.runs.tuning.candidates import derive_candidates
from fedmm.runs.tuning.halving import Budget
from fedmm.runs.tuning.rungs import Halving, Table

_MOST_SEEDS = 100


@dataclass(frozen=True)
class Tuning:
    """What :func:`tune` chose, and why.

    best: the experiment to run. label: what it is called in the table. sentence: why it was chosen.
    adapted: of the candidates that adapt the best by the same signals, even where the rule prefers source only; None
    where all of them were ruled out.
    table: a row for each candidate: ``candidate``, the last ``rung`` it ran in, its ``rounds`` there, ``signals`` (of
    each validator the mean, lowest and highest over the seeds), ``rank``, ``veto`` (why it was ruled out, or empty).
    notes: what was left out for lack of time. folder: where everything is; None where nothing was kept.
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
    minutes: float | None = None,
    seeds: int = 3,
    eta: int = 2,
    out: Path | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    say: Say = lambda line: None,
    title: str = "",
) -> Tuning:
    """Choose a setting for an experiment without target labels.

    All candidates run for a third of the rounds; the best 1/``eta`` of them run full length with several seeds. Target
    labels are never looked at: the best mean rank over ``target_information``, ``target_bnm`` and ``source_risk`` goes
    on, runs that diverged or collapsed do not. Of the third of the finalists with the best mean rank the one wins whose
    predictions agree best between seeds and between neighbouring target rows. Source only and the experiment as given
    always reach the end, and source only wins where the class mix of the target is reliably estimated to differ.

    experiment: one, its tables, or its file, which may have a ``[tune]`` table with lists of values to try.
    objectives: to try where there is no such table; by default the experiment's own.
    minutes: a time budget; fewer candidates or rounds are run to keep it. seeds: of each finalist.
    out: the folder for all runs, ``tune.json`` and ``tuned.toml``; without it nothing is kept.
    resume: go on with a tuning in that folder. say: told what is going on. title: of reports.
    """
    tables, name = _read(experiment)
    require_limits(seeds, minutes)
    candidates = derive_candidates(tables, objectives)
    require(out is not None or not resume, "resume needs the folder of the tuning; name it with out")
    require_stackable([*candidates.values()])
    prepare(next(reversed(candidates.values())), DataCache())
    budget = Budget(None if minutes is None else 60.0 * minutes)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        halving = Halving(candidates, Path(folder), seeds, eta, budget, progress=progress, say=say)
        halving.open(title or name, overwrite=overwrite, resume=resume)
        halving.run()
        choice = halving.close()
    return Tuning(
        candidates[choice.label],
        choice.label,
        choice.sentence,
        candidates[choice.adapted] if choice.adapted else None,
        halving.state["table"],
        [*halving.state["notes"], *filter(None, [halving.state["ended"]])],
        None if out is None else Path(out),
    )


def require_limits(seeds: int, minutes: float | None) -> None:
    """Refuse numbers of seeds and minutes that no tuning could have."""
    require(1 <= seeds <= _MOST_SEEDS, f"seeds must be from 1 to {_MOST_SEEDS}, not {seeds}")
    fine = minutes is None or (math.isfinite(minutes) and minutes > 0)
    require(fine, f"minutes must be above 0, not {minutes}; leave it out for no limit")


def _read(given: Experiment | Mapping[str, Any] | Path | str) -> tuple[Mapping[str, Any], str]:
    if isinstance(given, Experiment):
        return given.tables(), given.label
    return (given, "tuning") if isinstance(given, Mapping) else (read_tables(Path(given)), Path(given).stem)
