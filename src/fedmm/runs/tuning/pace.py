"""Measure how long runs of a tuning take: run a few of them briefly, and time the writing of their results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fedmm.config.schema import Experiment
from fedmm.config.sweep_grid import groups
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run import run_stack
from fedmm.runs.run_folder import ROUNDS, SUMMARY
from fedmm.runs.summary import Summary
from fedmm.runs.tuning.halving import Pace
from fedmm.training.batched import StackSettings


def run_briefly(
    experiments: Sequence[Experiment], cache: DataCache, stop: Callable[[], bool]
) -> tuple[list[Summary], float]:
    """Run experiments stacked in this process and keep no files; return summaries and the seconds spent writing."""
    prepared = [prepare(each, cache) for each in experiments]
    summaries: list[Summary] = []
    to_write = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for group in groups(experiments, prepared):
            own = [experiments[number] for number in group.members]
            ready = [prepared[number] for number in group.members]
            folders = [Path(folder) / str(number) for number in group.members]
            outcomes = run_stack(own, ready, folders, cache, StackSettings(), stop=stop, all_shifts=False)
            summaries += [summary for summary, _ in outcomes]
            to_write += seconds_to_write(folders)
    return summaries, to_write


def pace_of(runs: Sequence[Summary], seconds: float, to_write: float) -> Pace | None:
    """Return the pace of runs that took ``seconds`` in all, ``to_write`` of them writing; None if no round ended."""
    rounds = sum(run["rounds"] for run in runs)
    inside = min(seconds, sum(run["seconds"] for run in runs))
    return Pace(inside / rounds, max(0.0, seconds - inside - to_write), to_write / len(runs)) if rounds else None


def seconds_to_write(runs: Sequence[Path]) -> float:
    """Return the longest time from a run's last round to its summary, by when the files were written."""
    ends = [(each / ROUNDS, each / SUMMARY) for each in runs if (each / ROUNDS).exists() and (each / SUMMARY).exists()]
    return max((max(0.0, last.stat().st_mtime - first.stat().st_mtime) for first, last in ends), default=0.0)
