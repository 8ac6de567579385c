"""Train several runs in parallel processes, and write one summary of all."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmm.config.dataclass_io import Table
from fedmm.config.schema import Experiment, experiment
from fedmm.core.errors import FedmmError, Say
from fedmm.core.files import write_json
from fedmm.runs.evidence import judge_runs
from fedmm.runs.resume import PLAN, read_completed, read_plan, write_plan
from fedmm.runs.run import DivergedRun, run_experiment
from fedmm.runs.run_folder import SUMMARY, claim_folder
from fedmm.runs.summary import Summary
from fedmm.runs.workers import report, side_by_side, tell, told_to_stop
from fedmm.training.history import Row
from fedmm.training.progress import bars

_SUMMARY_KEYS = ("label", "algorithm", "objective", "seed", "rounds", "target_accuracy", "seconds", "status")
_LONGEST_SLUG = 100
Outcome = tuple[Summary, FedmmError | None] | None
"""A run's summary, and the error if it diverged; None for a run that never started."""


def compare(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    title: str,
    workers: int,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
    say: Say = lambda line: None,
) -> Summary:
    """Run all experiments, ``workers`` at a time, and write a comparison folder with a run folder for each.

    After Ctrl-C no further run starts, current runs end after their round, and what was done is kept. Other problems
    are raised once all runs have ended. resume: continue a comparison of the same runs in the folder, if there is one,
    without the completed runs.
    """
    names = folder_names(experiments)
    with claim_folder(folder, PLAN, overwrite=overwrite, resume=resume) as going_on:
        if going_on:
            read_plan(folder, experiments, names)
        else:
            write_json(folder / SUMMARY, comparison_summary(title, "running", [], []))
            write_plan(folder, experiments, names)
        done = {name: summary for name in names if going_on and (summary := read_completed(folder / name))}
        left = [name for name in names if name not in done]
        calls = [
            (index, experiment.tables(), str(folder / name), going_on)
            for index, (experiment, name) in enumerate(zip(experiments, names, strict=True))
            if name in left
        ]
        with bars(progress, "accuracy") as shown:
            tasks = [
                shown.add_task(f"{e.label} seed {e.run.seed}", total=e.run.rounds, accuracy="") for e in experiments
            ]

            def show(index: int, row: Row) -> None:
                shown.update(tasks[index], completed=row["round"])
                if row.get("target_accuracy") is not None:
                    shown.update(tasks[index], accuracy=f"target {row['target_accuracy']:6.1%}")

            for index, name in enumerate(names):
                shown.update(tasks[index], completed=done[name]["rounds"] if name in done else 0)
            futures, stopped = side_by_side(_run, calls, workers, show, say) if calls else ([], False)
        ended = {name: future for name, future in zip(left, futures, strict=False) if not future.cancelled()}
        problems = [problem for future in ended.values() if (problem := future.exception())]
        outcomes = {name: future.result() for name, future in ended.items() if not future.exception()}
        found = {name: (done[name], None) if name in done else outcomes.get(name) for name in names}
        known = {name: outcome for name, outcome in found.items() if outcome}
        status = "interrupted" if stopped else "completed"
        summary = comparison_summary(title, status, [summary for summary, _ in known.values()], list(known))
        write_json(folder / SUMMARY, summary)
    problems += [diverged for _, diverged in known.values() if diverged]
    if problems and status == "completed":
        raise problems[0]
    return summary


def _run(index: int, tables: dict[str, Table], folder: str, resume: bool) -> Outcome:
    """Train one run in a worker process."""
    if told_to_stop():
        return None

    def after_round(row: Row) -> None:
        report(index, row)
        if told_to_stop():
            raise KeyboardInterrupt

    def say(line: str) -> None:
        if resume:
            tell(f"{Path(folder).name}: {line}")

    try:
        return run_experiment(
            experiment(tables), Path(folder), resume=resume, progress=False, on_round=after_round, say=say
        ), None
    except DivergedRun as problem:
        return problem.summary, FedmmError(str(problem))
    except FedmmError as problem:
        raise FedmmError(str(problem)) from None


def folder_names(experiments: Sequence[Experiment]) -> list[str]:
    """Return a folder name for each run, made of its label and seed."""
    names = [f"{_slug(experiment.label)}-seed{experiment.run.seed}" for experiment in experiments]
    for name, count in Counter(names).items():
        if count > 1:
            raise FedmmError(f"two runs would both be called {name!r}; give them different labels or seeds")
    return names


def _slug(label: str) -> str:
    """Return the label in characters that every file system accepts; a long one is cut, with a hash of the whole."""
    slug = re.sub(r"[^a-z0-9.=-]+", "-", label.lower()).strip("-.") or "run"
    return (
        slug
        if len(slug) <= _LONGEST_SLUG
        else f"{slug[:_LONGEST_SLUG]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    )


def comparison_summary(
    title: str, status: str, summaries: Sequence[dict[str, Any]], folders: Sequence[str]
) -> dict[str, Any]:
    """Return the content of a comparison's ``summary.json``."""
    return {
        "kind": "comparison",
        "title": title,
        "status": status,
        "runs": [
            {**{key: summary[key] for key in _SUMMARY_KEYS}, "folder": folder}
            for summary, folder in zip(summaries, folders, strict=True)
        ],
        "evidence": judge_runs(summaries),
        "versions": summaries[0]["versions"] if summaries else {},
        "hardware": summaries[0]["hardware"] if summaries else {},
    }
