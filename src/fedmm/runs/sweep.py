"""Run a grid of experiments in as few programs as possible; on a CPU, in parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedmm.config.dataclass_io import Table
from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import groups
from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.files import write_json
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.comparison import comparison_summary, folder_names
from fedmm.runs.resume import PLAN, Program, fits, plan_in_words, read_completed, read_plan, write_plan
from fedmm.runs.run import rows_inside, run_stack
from fedmm.runs.run_folder import SUMMARY, claim_folder, hold_run_folder
from fedmm.runs.summary import Summary
from fedmm.runs.tracking import require_trackers
from fedmm.runs.workers import can_start_workers, report, side_by_side, tell, told_to_stop
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings
from fedmm.training.callbacks import OnRound
from fedmm.training.history import Row
from fedmm.training.progress import RunsProgress
from fedmm.training.stack_settings import Tuned, choose_settings

OnRow = Callable[[int, Row], None]
Outcome = tuple[Summary, str | None]
"""A run's summary, and the error message if it diverged."""


class DivergedRuns(FedmmError):  # noqa: N818 - reads as what happened
    """Raised if runs of a sweep diverged; ``summary`` covers all runs."""

    def __init__(self, message: str, summary: Summary) -> None:
        super().__init__(message)
        self.summary = summary


def run_sweep(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    title: str,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
    stop: Callable[[], bool] = lambda: False,
    say: Say = lambda line: None,
    all_shifts: bool = True,
) -> Summary:
    """Run all experiments, and write a comparison folder with an ordinary run folder for each.

    Runs of the same shape are stacked. The plan is reported before it is carried out. Ctrl-C keeps what was done.
    resume: continue a sweep of the same runs in the folder, if there is one, by its plan and without the completed
    runs. stop: called now and then; True ends the sweep as Ctrl-C does.
    all_shifts: whether runs that adapt also estimate label shift, which takes a moment; source-only runs always do.
    """
    require_stackable(experiments)
    runs = _Runs(experiments)
    names = folder_names(experiments)
    if not resume:  # what cannot be built is refused before an older folder is emptied
        runs.prepared(range(len(experiments)))
    with claim_folder(folder, PLAN, overwrite=overwrite, resume=resume) as going_on:
        if going_on:
            programs = [_on_this_device(program, runs) for program in read_plan(folder, experiments, names)]
        else:
            programs = _new_plan(runs)
            write_json(folder / SUMMARY, comparison_summary(title, "running", [], []))
            write_plan(folder, experiments, names, programs)
        say(plan_in_words(experiments, programs))
        ended: dict[int, Outcome] = {}
        with RunsProgress(len(experiments), sum(each.run.rounds for each in experiments), show=progress) as bars:
            for program in programs:
                folders = [folder / names[number] for number in program.members]
                outcomes = _read_outcomes(program, folders, bars) if going_on else []
                if not outcomes and not stop():
                    outcomes = _run(program, runs, folders, bars, stop, resume=going_on, say=say, all_shifts=all_shifts)
                ended |= {
                    number: outcome for number, outcome in zip(program.members, outcomes, strict=False) if outcome
                }
                if any(number not in ended or _is_interrupted(ended[number]) for number in program.members):
                    break
        order = sorted(ended)
        completed = len(ended) == len(experiments) and not any(map(_is_interrupted, ended.values()))
        summaries = [ended[number][0] for number in order]
        status = "completed" if completed else "interrupted"
        summary = comparison_summary(title, status, summaries, [names[number] for number in order])
        write_json(folder / SUMMARY, summary)
    if any(experiments[number].run.keep_rows for number in order):
        say(rows_inside(folder))
    problems = [
        f"{experiments[number].label}, seed {experiments[number].run.seed}: {problem}"
        for number in order
        if (problem := ended[number][1])
    ]
    if problems:
        raise DivergedRuns(f"{len(problems)} of {len(experiments)} runs diverged, first {problems[0]}", summary)
    return summary


def _is_interrupted(outcome: Outcome) -> bool:
    return bool(outcome[0]["status"] == "interrupted")


def require_stackable(experiments: Sequence[Experiment]) -> None:
    """Refuse runs that a sweep cannot stack, and trackers whose libraries are missing."""
    for planned in experiments:
        require(
            planned.run.engine in ("auto", "batched"),
            "run.engine must be 'auto' or 'batched' in a sweep, which stacks its runs",
        )
        require_trackers(planned.run.track)


class _Runs:
    """The experiments of a sweep; each is prepared once, when it is first needed."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self.experiments = experiments
        self.cache = DataCache()
        self._prepared: dict[int, Adaptation] = {}

    def prepared(self, numbers: Sequence[int]) -> list[Adaptation]:
        for number in numbers:
            if number not in self._prepared:
                self._prepared[number] = prepare(self.experiments[number], self.cache)
        return [self._prepared[number] for number in numbers]

    def tuned(self, members: Sequence[int]) -> Tuned:
        run = self.experiments[members[0]].run
        return choose_settings(self.prepared(members), run.precision, run.threads)


def _new_plan(runs: _Runs) -> list[Program]:
    everything = runs.prepared(range(len(runs.experiments)))
    return [Program(group.members, runs.tuned(group.members)) for group in groups(runs.experiments, everything)]


def _on_this_device(program: Program, runs: _Runs) -> Program:
    """Return the program as planned, with new settings if they were chosen for another kind of device."""
    device = runs.experiments[program.members[0]].run.torch_device
    return program if fits(program.tuned.settings, device) else replace(program, tuned=runs.tuned(program.members))


def _read_outcomes(program: Program, folders: Sequence[Path], bars: RunsProgress) -> Sequence[Outcome | None]:
    """Return the outcomes of a program if all of its runs have completed, else an empty list."""
    summaries = [summary for folder in folders if (summary := read_completed(folder))]
    if len(summaries) < len(folders):
        return []
    for number, summary in zip(program.members, summaries, strict=True):
        bars.skip(number, summary["rounds"])
    return [(summary, None) for summary in summaries]


def _run(
    program: Program,
    runs: _Runs,
    folders: Sequence[Path],
    bars: RunsProgress,
    stop: Callable[[], bool],
    *,
    resume: bool,
    say: Say,
    all_shifts: bool,
) -> Sequence[Outcome | None]:
    """Run one program; the outcome of a run that never started is None."""
    chosen = [runs.experiments[number] for number in program.members]
    processes = program.tuned.processes
    if processes > 1 and not can_start_workers():
        say(f'one process, not {processes}: the script has no `if __name__ == "__main__":` around its calls')
    elif processes > 1:

        def on_row(position: int, row: Row) -> None:
            bars(program.members[position], row)

        return _in_processes(
            chosen, folders, program.tuned, on_row, stop, resume=resume, say=say, all_shifts=all_shifts
        )
    torch.set_num_threads(program.tuned.threads)
    return _run_in_folders(
        chosen,
        runs.prepared(program.members),
        folders,
        runs.cache,
        program.tuned.settings,
        [[OnRound(partial(bars, number))] for number in program.members],
        stop,
        resume=resume,
        say=say,
        all_shifts=all_shifts,
    )


def _run_in_folders(
    experiments: Sequence[Experiment],
    adaptations: Sequence[Adaptation],
    folders: Sequence[Path],
    *args: Any,
    **options: Any,
) -> list[Outcome]:
    """Call :func:`fedmm.runs.run.run_stack` with the folders locked against other processes."""
    with ExitStack() as held:
        for folder in folders:
            folder.mkdir(exist_ok=True)
            held.enter_context(hold_run_folder(folder))
        outcomes = run_stack(experiments, adaptations, folders, *args, **options)
    return [(summary, str(error) if error else None) for summary, error in outcomes]


def _in_processes(
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    tuned: Tuned,
    on_row: OnRow,
    stop: Callable[[], bool],
    *,
    resume: bool,
    say: Say,
    all_shifts: bool,
) -> list[Outcome | None]:
    """Split the runs of one program among processes, each with a smaller stack; None for a run that never started."""
    parts = [range(first, len(experiments), tuned.processes) for first in range(tuned.processes)]
    calls = [
        (
            [experiments[number].tables() for number in part],
            [str(folders[number]) for number in part],
            list(part),
            tuned.settings,
            tuned.threads,
            resume,
            all_shifts,
        )
        for part in parts
    ]
    futures, _ = side_by_side(_worker, calls, tuned.processes, on_row, say, stop)
    outcomes: dict[int, Outcome] = {}
    for part, future in zip(parts, futures, strict=False):
        if not future.cancelled():
            outcomes.update(zip(part, future.result(), strict=True))
    return [outcomes.get(number) for number in range(len(experiments))]


def _worker(
    tables: list[dict[str, Table]],
    folders: list[str],
    numbers: list[int],
    settings: StackSettings,
    threads: int,
    resume: bool,
    all_shifts: bool,
) -> list[Outcome]:
    torch.set_num_threads(threads)
    cache = DataCache()
    experiments = [experiment(table) for table in tables]
    adaptations = [prepare(planned, cache) for planned in experiments]
    callbacks = [[OnRound(partial(report, number))] for number in numbers]
    places = list(map(Path, folders))
    options: dict[str, Any] = {"resume": resume, "say": tell, "all_shifts": all_shifts}
    try:
        return _run_in_folders(experiments, adaptations, places, cache, settings, callbacks, told_to_stop, **options)
    except FedmmError as problem:
        raise FedmmError(str(problem)) from None
