"""Several runs side by side, in processes of their own, and one summary over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmm.core.errors import FedmmError
from fedmm.experiment.config import Experiment, experiment
from fedmm.experiment.folder import SUMMARY, claim_folder, write_json
from fedmm.experiment.history import Row
from fedmm.experiment.overview import comparison_summary, folder_names
from fedmm.experiment.progress import bars
from fedmm.experiment.run import DivergedRun, Summary, run_experiment
from fedmm.experiment.tables import Table
from fedmm.experiment.workers import report, side_by_side, told_to_stop

Outcome = tuple[Summary, FedmmError | None] | None
"""A run's summary, and the word on it if it diverged; None for a run that was never begun."""


def compare(
    experiments: Sequence[Experiment], folder: Path, *, title: str, workers: int, overwrite: bool = False,
    progress: bool = True,
) -> Summary:  # fmt: skip
    """Run all experiments, ``workers`` at a time with one thread each, and leave a comparison folder.

    Every run has a folder of its own inside. After Ctrl-C no run begins, those under way end with their round, and
    what was done until then is kept.
    """
    names = folder_names(experiments)
    claim_folder(folder, overwrite=overwrite)
    write_json(folder / SUMMARY, comparison_summary(title, "running", [], []))
    calls = [
        (index, each.tables(), str(folder / name))
        for index, (each, name) in enumerate(zip(experiments, names, strict=True))
    ]
    with bars(progress, "accuracy") as shown:
        tasks = [shown.add_task(f"{e.label} seed {e.run.seed}", total=e.run.rounds, accuracy="") for e in experiments]

        def show(index: int, row: Row) -> None:
            shown.update(tasks[index], completed=row["round"])
            if row.get("target_accuracy") is not None:
                shown.update(tasks[index], accuracy=f"target {row['target_accuracy']:6.1%}")

        futures, stopped = side_by_side(_run, calls, workers, show)
    ended = {name: future for name, future in zip(names, futures, strict=False) if not future.cancelled()}
    problems = [problem for future in ended.values() if (problem := future.exception())]
    outcomes = {name: future.result() for name, future in ended.items() if not future.exception()}
    begun = {name: outcome for name, outcome in outcomes.items() if outcome}
    status = "interrupted" if stopped else "completed"
    summary = comparison_summary(title, status, [summary for summary, _ in begun.values()], list(begun))
    write_json(folder / SUMMARY, summary)
    problems += [diverged for _, diverged in begun.values() if diverged]
    if problems and status == "completed":
        raise problems[0]
    return summary


def _run(index: int, tables: dict[str, Table], folder: str) -> Outcome:
    """A run, in a worker."""
    if told_to_stop():
        return None

    def after_round(row: Row) -> None:
        report(index, row)
        if told_to_stop():
            raise KeyboardInterrupt

    try:
        return run_experiment(experiment(tables), Path(folder), progress=False, on_round=after_round), None
    except DivergedRun as problem:
        return problem.summary, FedmmError(str(problem))
    except FedmmError as problem:
        raise FedmmError(str(problem)) from None
