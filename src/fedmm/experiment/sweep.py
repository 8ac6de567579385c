"""A grid of experiments in as few programs as possible; on a CPU, side by side in processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedmm.core.errors import FedmmError, require
from fedmm.experiment.build import DataCache, prepare
from fedmm.experiment.config import Experiment, experiment
from fedmm.experiment.folder import SUMMARY, claim_folder, write_json
from fedmm.experiment.grid import groups
from fedmm.experiment.history import Row
from fedmm.experiment.overview import comparison_summary, folder_names
from fedmm.experiment.run import Summary, run_stack
from fedmm.experiment.runs_progress import RunsProgress
from fedmm.experiment.stack import StackSettings
from fedmm.experiment.tables import Table
from fedmm.experiment.tuning import Tuned, tune
from fedmm.experiment.workers import report, side_by_side, told_to_stop

OnRow = Callable[[int, Row], None]


@dataclass(frozen=True)
class Program:
    """One stack of the plan: which runs, by their numbers, and how they run."""

    members: tuple[int, ...]
    tuned: Tuned


def run_sweep(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    title: str,
    overwrite: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Summary:
    """Run all experiments and leave a comparison folder with an ordinary run folder for each inside.

    Runs of one shape are stacked. The plan is told before it is carried out. Ctrl-C leaves what was done until then.
    """
    for each in experiments:
        require(
            each.run.engine != "in_process", "run.engine must be 'auto' or 'batched' in a sweep, which stacks its runs"
        )
    cache = DataCache()
    adaptations = [prepare(each, cache) for each in experiments]
    names = folder_names(experiments)
    claim_folder(folder, overwrite=overwrite)
    programs = []
    for group in groups(experiments, adaptations):
        run = experiments[group.members[0]].run
        tuned = tune([adaptations[number] for number in group.members], run.precision, run.threads)
        programs.append(Program(group.members, tuned))
    say(plan_in_words(experiments, programs))
    _begin(folder, title)
    summaries: dict[int, Summary] = {}
    problems: list[str] = []
    status = "completed"
    with RunsProgress(experiments, show=progress) as bars:
        for program in programs:
            chosen = [experiments[number] for number in program.members]
            folders = [folder / names[number] for number in program.members]

            def on_row(position: int, row: Row, members: tuple[int, ...] = program.members) -> None:
                bars(members[position], row)

            outcomes: Sequence[tuple[Summary, str | None] | None]
            if program.tuned.processes > 1:
                outcomes = _in_processes(chosen, folders, program.tuned, on_row)
            else:
                torch.set_num_threads(program.tuned.threads)
                done = run_stack(
                    chosen,
                    [adaptations[number] for number in program.members],
                    folders,
                    cache,
                    program.tuned.settings,
                    on_row,
                )
                outcomes = [(summary, str(error) if error else None) for summary, error in done]
            for number, outcome in zip(program.members, outcomes, strict=True):
                if outcome is None or outcome[0]["status"] == "interrupted":
                    status = "interrupted"
                if outcome is not None:
                    summaries[number], problem = outcome
                    if problem:
                        each = experiments[number]
                        problems.append(f"{each.label}, seed {each.run.seed}: {problem}")
            if status == "interrupted":
                break
    order = sorted(summaries)
    summary = comparison_summary(title, status, [summaries[n] for n in order], [names[n] for n in order])
    write_json(folder / SUMMARY, summary)
    require(
        not problems, f"{len(problems)} of {len(experiments)} runs diverged, first {problems[0]}" if problems else ""
    )
    return summary


def _begin(folder: Path, title: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SUMMARY, comparison_summary(title, "running", [], []))
    except OSError as problem:
        raise FedmmError(f"the sweep cannot be written to {folder}: {problem.strerror}") from problem


def plan_in_words(experiments: Sequence[Experiment], programs: Sequence[Program]) -> str:
    """The plan, a line for each program."""
    lines = [f"{len(experiments)} runs in {len(programs)} program(s):"]
    for number, program in enumerate(programs, start=1):
        first = experiments[program.members[0]]
        algorithms = sorted({experiments[member].algorithm.name for member in program.members})
        lines.append(
            f"  {number}. {len(program.members)} runs of {first.run.rounds} rounds, {first.model.name}, "
            f"{first.objective.name}, {', '.join(algorithms)}; {program.tuned.why}"
        )
    return "\n".join(lines)


def _in_processes(
    experiments: Sequence[Experiment], folders: Sequence[Path], tuned: Tuned, on_row: OnRow
) -> list[tuple[Summary, str | None] | None]:
    """The runs of one program dealt to processes, each a smaller stack; None for a run that was never begun."""
    parts = [range(first, len(experiments), tuned.processes) for first in range(tuned.processes)]
    calls = [
        (
            [experiments[number].tables() for number in part],
            [str(folders[number]) for number in part],
            list(part),
            tuned.settings,
            tuned.threads,
        )
        for part in parts
    ]
    futures, _ = side_by_side(_worker, calls, tuned.processes, on_row)
    outcomes: dict[int, tuple[Summary, str | None]] = {}
    for part, future in zip(parts, futures, strict=False):
        if not future.cancelled():
            outcomes.update(zip(part, future.result(), strict=True))
    return [outcomes.get(number) for number in range(len(experiments))]


def _worker(
    tables: list[dict[str, Table]], folders: list[str], numbers: list[int], settings: StackSettings, threads: int
) -> list[tuple[Summary, str | None]]:
    torch.set_num_threads(threads)
    cache = DataCache()
    experiments = [experiment(each) for each in tables]
    adaptations = [prepare(each, cache) for each in experiments]

    def on_row(position: int, row: Row) -> None:
        report(numbers[position], row)

    try:
        outcomes = run_stack(experiments, adaptations, list(map(Path, folders)), cache, settings, on_row, told_to_stop)
    except FedmmError as problem:
        raise FedmmError(str(problem)) from None
    return [(summary, str(error) if error else None) for summary, error in outcomes]
