"""Several runs side by side, in processes of their own, and one summary over them."""

from __future__ import annotations

import multiprocessing
import queue
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedmm.core.errors import FedmmError
from fedmm.experiment.config import Experiment, experiment
from fedmm.experiment.folder import SUMMARY, claim_folder, write_json
from fedmm.experiment.history import Row
from fedmm.experiment.overview import comparison_summary, folder_names
from fedmm.experiment.run import DivergedRun, Summary, run_experiment
from fedmm.experiment.tables import Table
from fedmm.experiment.training import ctrl_c_waits

_POLL_SECONDS = 0.1

Outcome = tuple[Summary, FedmmError | None] | None
"""A run's summary, and the word on it if it diverged; None for a run that was never begun."""


@dataclass(frozen=True)
class _Lines:
    """Between a comparison and its workers: the rounds as they are done, and the word to stop."""

    rows: Queue[tuple[int, Row]]
    stop: Event


_lines: _Lines  # in a worker


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
    context = multiprocessing.get_context("spawn")
    lines = _Lines(context.Queue(), context.Event())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(lines,))
    futures: list[Future[Outcome]] = []
    with pool, _bars(progress) as bars:
        tasks = [bars.add_task(f"{e.label} seed {e.run.seed}", total=e.run.rounds, accuracy="") for e in experiments]
        try:
            with ctrl_c_waits(), _children_deaf_to_ctrl_c():
                for index, (each, name) in enumerate(zip(experiments, names, strict=True)):
                    futures.append(pool.submit(_run, index, each.tables(), str(folder / name)))
            _watch(futures, lines.rows, bars, tasks)
        except KeyboardInterrupt:
            lines.stop.set()
            for future in futures:
                future.cancel()
            _watch(futures, lines.rows, bars, tasks)
    ended = {name: future for name, future in zip(names, futures, strict=False) if not future.cancelled()}
    problems = [problem for future in ended.values() if (problem := future.exception())]
    outcomes = {name: future.result() for name, future in ended.items() if not future.exception()}
    begun = {name: outcome for name, outcome in outcomes.items() if outcome}
    status = "interrupted" if lines.stop.is_set() else "completed"
    summary = comparison_summary(title, status, [summary for summary, _ in begun.values()], list(begun))
    write_json(folder / SUMMARY, summary)
    problems += [diverged for _, diverged in begun.values() if diverged]
    if problems and status == "completed":
        raise problems[0]
    return summary


@contextmanager
def _children_deaf_to_ctrl_c() -> Iterator[None]:
    """Processes begun inside never feel the Ctrl-C that a terminal sends to all: when they stop is for us to say."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(lines: _Lines) -> None:
    global _lines  # noqa: PLW0603 - queues and events reach a worker when it begins, and only then
    _lines = lines


def _run(index: int, tables: dict[str, Table], folder: str) -> Outcome:
    """A run, in a worker."""
    if _lines.stop.is_set():
        return None

    def report(row: Row) -> None:
        _lines.rows.put((index, row))
        if _lines.stop.is_set():
            raise KeyboardInterrupt

    try:
        return run_experiment(experiment(tables), Path(folder), progress=False, on_round=report), None
    except DivergedRun as problem:
        return problem.summary, FedmmError(str(problem))
    except FedmmError as problem:
        raise FedmmError(str(problem)) from None


def _watch(
    futures: Sequence[Future[Outcome]], rows: Queue[tuple[int, Row]], bars: Progress, tasks: Sequence[TaskID]
) -> None:
    """Show the rounds as they come in until every run has ended."""
    while True:
        ended = all(future.done() for future in futures)
        try:
            with ctrl_c_waits():  # half a row read would spoil the rest
                index, row = rows.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if ended:
                return
            continue
        bars.update(tasks[index], completed=row["round"])
        if row.get("target_accuracy") is not None:
            bars.update(tasks[index], accuracy=f"target {row['target_accuracy']:6.1%}")


def _bars(show: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not (show and console.is_terminal),
    )
