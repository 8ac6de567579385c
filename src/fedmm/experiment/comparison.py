"""Several runs side by side, in processes of their own, and one summary over them."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedmm.core.errors import FedmmError
from fedmm.experiment.config import Experiment, experiment
from fedmm.experiment.folder import SUMMARY, claim_folder, write_json
from fedmm.experiment.history import Row
from fedmm.experiment.run import DivergedRun, Summary, run_experiment
from fedmm.experiment.tables import Table

_POLL_SECONDS = 0.1
_SHOWN = ("label", "algorithm", "objective", "seed", "rounds", "target_accuracy", "seconds", "status")


def compare(
    experiments: Sequence[Experiment], folder: Path, *, title: str, workers: int, overwrite: bool = False,
    progress: bool = True,
) -> Summary:  # fmt: skip
    """Run all experiments, ``workers`` at a time with one thread each, and leave a comparison folder.

    Every run has a folder of its own inside. Ctrl-C leaves what was finished until then.
    """
    claim_folder(folder, overwrite=overwrite)
    names = [_folder_name(each) for each in experiments]
    assert len(set(names)) == len(names), "two runs of a comparison have the same label and seed"
    context = multiprocessing.get_context("spawn")
    summaries: list[Summary] = []
    status = "completed"
    with context.Manager() as manager, _bars(progress) as bars:
        rows: queue.Queue[tuple[int, Row]] = manager.Queue()
        tasks = [bars.add_task(f"{e.label} seed {e.run.seed}", total=e.run.rounds, accuracy="") for e in experiments]
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            futures = [
                pool.submit(_run, index, each.tables(), str(folder / name), rows)
                for index, (each, name) in enumerate(zip(experiments, names, strict=True))
            ]
            try:
                _watch(futures, rows, bars, tasks)
            except KeyboardInterrupt:
                status = "interrupted"
                pool.shutdown(wait=True, cancel_futures=True)
        failed: BaseException | None = None
        for future, name in zip(futures, names, strict=True):
            if future.cancelled():
                continue
            problem = future.exception()
            failed = failed or problem
            if problem is None:
                summary, diverged = future.result()
                summaries.append({**summary, "folder": name})
                failed = failed or diverged
    summary = {
        "kind": "comparison",
        "title": title,
        "status": status,
        "runs": [{key: each[key] for key in (*_SHOWN, "folder")} for each in summaries],
        "versions": summaries[0]["versions"] if summaries else {},
        "hardware": summaries[0]["hardware"] if summaries else {},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SUMMARY, summary)
    if failed is not None and status == "completed":
        raise failed
    return summary


def _folder_name(each: Experiment) -> str:
    return f"{each.label.lower().replace(' ', '-')}-seed{each.run.seed}"


def _run(index: int, tables: dict[str, Table], folder: str, rows: Any) -> tuple[Summary, FedmmError | None]:
    """A run in a process of its own: its summary, and the word on it if it diverged."""

    def report(row: Row) -> None:
        rows.put((index, row))

    try:
        return run_experiment(experiment(tables), Path(folder), progress=False, on_round=report), None
    except DivergedRun as problem:
        return problem.summary, FedmmError(str(problem))
    except FedmmError as problem:
        raise FedmmError(str(problem)) from None


def _watch(futures: Sequence[Future[Any]], rows: Any, bars: Progress, tasks: Sequence[TaskID]) -> None:
    """Show the rounds as they come in until every run has ended."""
    while True:
        ended = all(future.done() for future in futures)
        try:
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
