"""The runs of a figure or table: skip finished ones, resume interrupted ones, and run the others in stacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from fedmm.config.sweep_grid import groups
from fedmm.core.errors import FedmmError, Say
from fedmm.models.devices import Precision
from fedmm.reproduction.plan import PaperRun
from fedmm.reproduction.results import identity, read_lines
from fedmm.reproduction.write_results import append_lines, digest, relabel, result_line, stamp
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.summary import provenance
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackRun
from fedmm.training.callbacks import OnRound, Status
from fedmm.training.progress import RunsProgress
from fedmm.training.snapshots import load_snapshot, save_snapshot
from fedmm.training.stack_settings import choose_settings


@dataclass(frozen=True)
class Where:
    """How runs are computed; it does not affect what they compute, up to rounding.

    stack: the most runs in one program. seconds: stop in time, keeping every unfinished run's state; 0 for no limit.
    """

    device: str = "cpu"
    precision: Precision = "fp32"
    stack: int = 16
    seconds: float = 0.0


@dataclass(frozen=True)
class Reproduced:
    """How many runs were done before, were done now, and are left."""

    before: int
    now: int
    left: int


def reproduce(
    runs: Sequence[PaperRun],
    results: Path,
    states: Path,
    where: Where,
    command: str,
    *,
    elsewhere: Sequence[Path] = (),
    progress: bool,
    say: Say,
) -> Reproduced:
    """Run what the results file does not have yet, and append each run to it when it ends.

    states: the folder that keeps unfinished runs after Ctrl-C or when time is up.
    elsewhere: other results files; a run of the same experiment as one in them, or in another panel, is copied.
    Ctrl-C is re-raised once everything that is finished or can be resumed is on disk.
    """
    began = time.monotonic()
    pending = _pending(runs, results, say)
    pending = _copy_results(pending, results, elsewhere, say)
    once = list({digest(run): run for run in reversed(pending)}.values())[::-1]
    say(f"{len(runs)} runs: {len(runs) - len(pending)} done before, {len(pending)} to do")
    with RunsProgress(len(once), sum(run.experiment.run.rounds for run in once), show=progress) as bar:
        for stack in _stacks(once, states, where, say):

            def stop() -> bool:
                return bool(where.seconds) and time.monotonic() - began > where.seconds

            if stop():
                say("the time is up")
                break
            status = _run(stack, results, where, command, stop, bar)
            if status == "interrupted":
                say(f"interrupted: states of unfinished runs are in {states}; the same command continues from there")
                if not stop():
                    raise KeyboardInterrupt
                break
    left = _copy_results(_pending(pending, results, lambda _: None), results, (), say)
    return Reproduced(len(runs) - len(pending), len(pending) - len(left), len(left))


def _pending(runs: Sequence[PaperRun], results: Path, say: Say) -> list[PaperRun]:
    known = {identity(line): line["digest"] for line in read_lines(results)}
    pending = []
    for run in runs:
        found = known.get((run.panel, run.curve, run.experiment.run.seed, run.scale))
        if found is not None and found != digest(run):
            say(f"{run.panel}/{run.curve} seed {run.experiment.run.seed}: its file changed since; it is run again")
        if found != digest(run):
            pending.append(run)
    return pending


def _copy_results(pending: Sequence[PaperRun], results: Path, elsewhere: Sequence[Path], say: Say) -> list[PaperRun]:
    """Copy what was computed for another panel or item; return the runs that are left."""
    known = {line["digest"]: line for path in (*elsewhere, results) for line in read_lines(path)}
    copies, left = [], []
    for run in pending:
        line = known.get(digest(run))
        if line is None:
            left.append(run)
        else:
            copies.append(relabel(line, run))
    if copies:
        append_lines(results, copies)
        say(f"{len(copies)} runs are the same experiments as others and were copied")
    return left


@dataclass(frozen=True)
class _Stack:
    """Prepared runs of one program; states: where each is kept if it is interrupted."""

    runs: list[PaperRun]
    adaptations: list[Adaptation]
    states: list[Path]


def _stacks(pending: Sequence[PaperRun], states: Path, where: Where, say: Say) -> Iterator[_Stack]:
    """Yield stacks panel by panel, to hold one panel's data at a time; runs interrupted in one round go together."""
    cache = DataCache()
    for panel in dict.fromkeys(run.panel for run in pending):
        here = [_place_run(run, where) for run in pending if run.panel == panel]
        kept = [states / f"{digest(run)}.safetensors" for run in here]
        begun = [_rounds_done(path, say) for path in kept]
        for rounds in dict.fromkeys(begun):
            chosen = [n for n, done in enumerate(begun) if done == rounds]
            adaptations = [prepare(here[n].experiment, cache) for n in chosen]
            for group in groups([here[n].experiment for n in chosen], adaptations):
                for first in range(0, len(group.members), where.stack):
                    members = group.members[first : first + where.stack]
                    own = [chosen[member] for member in members]
                    yield _Stack(
                        [here[n] for n in own], [adaptations[member] for member in members], [kept[n] for n in own]
                    )


def _place_run(run: PaperRun, where: Where) -> PaperRun:
    options = replace(run.experiment.run, device=where.device, precision=where.precision)
    return replace(run, experiment=replace(run.experiment, run=options))


def _rounds_done(path: Path, say: Say) -> int:
    if not path.exists():
        return 0
    try:
        return load_snapshot(path, torch.device("cpu"))[0].round
    except FedmmError as problem:
        say(f"{problem}; the run starts again")
        with suppress(OSError):
            path.unlink()
        return 0


def _run(
    stack: _Stack, results: Path, where: Where, command: str, stop: Callable[[], bool], bar: RunsProgress
) -> Status:
    """Run one stack, append those of its runs that ended to the results, and keep the states of the others."""
    first = stack.runs[0].experiment.run
    began = time.perf_counter()
    tuned = choose_settings(stack.adaptations, first.precision, first.threads)
    torch.set_num_threads(tuned.threads)
    callbacks = [[OnRound(partial(bar, replica))] for replica in range(len(stack.runs))]
    begun = stack.states[0].exists()
    resume_from = [load_snapshot(path, first.torch_device) for path in stack.states] if begun else []
    stacked = StackRun(stack.adaptations, first.precision, tuned.settings, callbacks, resume_from)
    earlier = [history.total("seconds") for history in stacked.histories]
    status = stacked.run(first.rounds, first.evaluate_every, stop)
    about = {
        **stamp(command),
        **provenance(stack.adaptations[0].function.layout.device),
        "precision": first.precision,
        "engine": {"name": "batched", "stacked": len(stack.runs), **asdict(tuned.settings)},
    }
    seconds = (time.perf_counter() - began) / len(stack.runs)
    lines, finished = [], []
    for replica, (run, path) in enumerate(zip(stack.runs, stack.states, strict=True)):
        training = stacked.training(replica, status)
        if training.error is None and training.status == "interrupted":
            save_snapshot(path, training.state, training.history)
        else:
            own = {**about, "seconds": round(earlier[replica] + seconds, 2)}
            lines.append(result_line(run, training.history, training.status, own))
            finished.append(path)
    append_lines(results, lines)
    for path in finished:
        path.unlink(missing_ok=True)
    return status
