"""Run one experiment, from its configuration to a finished run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedmm.config.schema import Experiment
from fedmm.core.errors import Diverged, FedmmError, Say, require
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.evidence import shift_warning
from fedmm.runs.on_nvflare import every_round_kept, nvflare_engines
from fedmm.runs.on_ray import ray_engines
from fedmm.runs.resume import (
    keep_rows,
    keep_settings,
    require_same_input,
    require_same_run,
    resume_points,
    settings_of,
)
from fedmm.runs.run_folder import EXPERIMENT, REFUSED, RunFolder, claim_folder, write_input
from fedmm.runs.summary import Summary, finish_run, no_best_model
from fedmm.runs.tracking import Tracks, require_trackers
from fedmm.training.adaptation import Adaptation, Adapted
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.callbacks import Callback, OnRound
from fedmm.training.checkpoints import checkpoints_of
from fedmm.training.history import History, Row
from fedmm.training.progress import RoundProgress
from fedmm.training.snapshots import ResumePoint

_SHOWN = 10

_ELSEWHERE = {"ray": ray_engines, "nvflare": nvflare_engines, "nvflare_poc": nvflare_engines}
"""Engines that run clients in other processes."""


class DivergedRun(FedmmError):  # noqa: N818 - reads as what happened
    """Raised if a client diverged; the run's folder and ``summary`` hold the good rounds before that."""

    def __init__(self, message: str, summary: Summary) -> None:
        super().__init__(message)
        self.summary = summary


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
    on_round: Callable[[Row], None] | None = None,
    callbacks: Sequence[Callback] = (),
    say: Say = lambda line: None,
) -> Summary:
    """Train an experiment, write a run folder, and return its summary.

    Everything is checked and built before the folder is created. After Ctrl-C, or if a client diverges, the folder
    has the rounds and the model up to then; a divergence is raised as :class:`DivergedRun` once they are written.

    folder: where to write; one that is not empty is refused without ``overwrite`` or ``resume``.
    resume: continue from the newest checkpoint of a run in the folder, if one was started.
    progress: show a bar on the terminal. say: called with each line for the user, such as which engine runs, and why.
    on_round: called with each round's row of the history. callbacks: objects that watch the training, and may end it.
    """
    if experiment.run.threads:
        torch.set_num_threads(experiment.run.threads)
    if experiment.run.engine in ("nvflare", "nvflare_poc"):
        experiment = every_round_kept(experiment)
    require_trackers(experiment.run.track)
    cache = DataCache()
    adaptation = prepare(experiment, cache)
    engine, why = choose_engine(experiment, adaptation)
    watching = [*([OnRound(on_round)] if on_round else []), *callbacks]
    with claim_folder(folder, EXPERIMENT, overwrite=overwrite, resume=resume) as going_on:
        if going_on:
            require_same_run(experiment, folder)
        say(f"engine {engine}: {why}")
        if engine == "batched":
            settings = settings_of(folder, adaptation, experiment.run.precision, resume=resume)
            bar = RoundProgress(adaptation.label, adaptation.rounds, show=progress)
            own = [[bar, *watching]]
            (outcome,) = run_stack([experiment], [adaptation], [folder], cache, settings, own, resume=resume, say=say)
        else:
            outcome = _run_one(
                experiment, adaptation, folder, cache, watching, progress=progress, resume=resume, say=say
            )
    summary, error = outcome
    for line in _closing_words(summary, experiment, folder):
        say(line)
    if error:
        message = f"{error}; the run up to round {summary['rounds']} is in {folder}"
        raise DivergedRun(message, summary) from error
    return summary


def rows_inside(folder: Path) -> str:
    """Return a line that warns of rows of the data in a folder."""
    return f"{folder} holds a few rows of the data, for pictures and reports; run.keep_rows = false leaves them out"


def _closing_words(summary: Summary, experiment: Experiment, folder: Path) -> Iterator[str]:
    if summary["refused"]:
        yield f"{summary['refused']} updates were refused: {folder / REFUSED} says whose, and why"
    best = summary.get("oracle_best") or summary.get("best")
    if best:
        yield (
            f"best by {best['by']}: round {best['round']} of {summary['rounds']}, kept as {best['model']}, "
            "which predict, evaluate and export use"
        )
    elif experiment.run.best_by and summary["rounds"]:
        yield no_best_model(experiment.run.best_by)
    if weights := summary.get("site_weights"):
        heaviest = sorted(weights, key=lambda name: -weights[name])[:_SHOWN]
        listed = ", ".join(f"{name} {weights[name]:.3f}" for name in heaviest)
        yield f"weights of the sites' losses: {listed}" + (" and so on" if len(weights) > _SHOWN else "")
    if summary["stopped_early"]:
        yield f"stopped early in round {summary['stopped_early']['round']}: {summary['stopped_early']['reason']}"
    if warning := shift_warning(summary):
        yield warning
    for event in summary["guard"]:
        if event["policy"] == "rollback":
            yield f"round {event['round']}: {event['reason']}; the guard went back to round {event['to_round']}"
    if experiment.run.keep_rows:
        yield rows_inside(folder)


def choose_engine(experiment: Experiment, adaptation: Adaptation) -> tuple[str, str]:
    """Return which engine runs a single experiment, and why."""
    for option in ("actors", "ray_address", "stacked", "durable"):
        used = experiment.run.engine == "ray" or not getattr(experiment.run, option)
        require(used, f"run.{option} is for the engine 'ray', and run.engine is {experiment.run.engine!r}")
    if experiment.run.engine != "auto":
        return experiment.run.engine, "as requested"
    if adaptation.function.layout.device.type == "cuda":
        return "batched", "on a GPU the clients' steps run as one captured program"
    return "in_process", "a single run on a CPU: the reference engine is as fast, and reproducible bit for bit"


Outcome = tuple[Summary, Diverged | None]
Train = Callable[[list[list[Callback]], list[ResumePoint]], list[tuple[Adapted, Diverged | None]]]
"""Trains several runs, from each one's callbacks and resume point; returns their models, and what diverged."""


def _run_in_folders(
    experiments: Sequence[Experiment],
    adaptations: Sequence[Adaptation],
    folders: Sequence[Path],
    cache: DataCache,
    engine: dict[str, Any],
    train: Train,
    callbacks: Sequence[Sequence[Callback]],
    *,
    resume: bool,
    say: Say,
    all_shifts: bool = True,
) -> list[Outcome]:
    """Train runs, and write a run folder for each. engine: its entry in summaries. callbacks: further ones per run."""
    pairs = [cache.pair(experiment, torch.device("cpu")) for experiment in experiments]
    for note in dict.fromkeys(note for pair in pairs for note in pair.notes):
        say(note)
    best = [adaptation.best_model() for adaptation in adaptations]
    checkpoints = [
        checkpoints_of(experiment.run, folder, model)
        for experiment, folder, model in zip(experiments, folders, best, strict=True)
    ]
    points = resume_points(experiments, adaptations, folders, checkpoints, say) if resume else []
    for pair, folder in zip(pairs, folders, strict=True) if resume else ():
        require_same_input(pair, folder)
    outcomes: list[Outcome] = []
    with ExitStack() as opened:
        files, tracks = list[RunFolder](), list[Tracks]()
        for number, (experiment, adaptation, folder) in enumerate(zip(experiments, adaptations, folders, strict=True)):
            state, history = points[number] if points else (None, History())
            files.append(opened.enter_context(RunFolder(folder, experiment.tables(), history)))
            keep_rows(adaptation, folder)
            write_input(folder, pairs[number])
            tracks.append(opened.enter_context(Tracks(experiment, folder, state.round if state else 0)))
        everything = zip(best, files, tracks, callbacks, checkpoints, strict=True)
        trained = train([[first, file, track, *own, last] for first, file, track, own, last in everything], points)
        for experiment, adaptation, file, track, (adapted, error) in zip(
            experiments, adaptations, files, tracks, trained, strict=True
        ):
            shifts = all_shifts or experiment.source_only
            summary = finish_run(file, experiment, adaptation, adapted, cache, engine, shifts=shifts)
            track.finish(summary)
            outcomes.append((summary, error))
    return outcomes


def _run_one(
    experiment: Experiment,
    adaptation: Adaptation,
    folder: Path,
    cache: DataCache,
    callbacks: Sequence[Callback],
    *,
    progress: bool,
    resume: bool,
    say: Say,
) -> Outcome:
    elsewhere = _ELSEWHERE.get(experiment.run.engine)
    name = experiment.run.engine if elsewhere else "in_process"
    with elsewhere(experiment, adaptation, folder) if elsewhere else nullcontext() as engines:

        def train(callbacks: list[list[Callback]], points: list[ResumePoint]) -> list[tuple[Adapted, Diverged | None]]:
            adapted = adaptation.run(
                callbacks[0],
                points[0] if points else None,
                progress=progress,
                engines=engines,
            )
            return [adapted]

        (outcome,) = _run_in_folders(
            [experiment], [adaptation], [folder], cache, {"name": name}, train, [callbacks], resume=resume, say=say
        )
    return outcome


def run_stack(
    experiments: Sequence[Experiment],
    adaptations: Sequence[Adaptation],
    folders: Sequence[Path],
    cache: DataCache,
    settings: StackSettings,
    callbacks: Sequence[Sequence[Callback]] = (),
    stop: Callable[[], bool] = lambda: False,
    *,
    resume: bool = False,
    say: Say = lambda line: None,
    all_shifts: bool = True,
) -> list[Outcome]:
    """Run experiments of the same shape as one program, and write a run folder for each.

    callbacks: of each run. stop: called now and then; True ends the runs. resume: continue from the newest round of
    which all runs have checkpoints, if any. all_shifts: whether runs that adapt also estimate label shift.
    """
    run = experiments[0].run

    def train(callbacks: list[list[Callback]], points: list[ResumePoint]) -> list[tuple[Adapted, Diverged | None]]:
        for folder in folders:
            keep_settings(folder, settings)
        stack = StackRun(adaptations, run.precision, settings, callbacks, points)
        status = stack.run(run.rounds, run.evaluate_every, stop)
        return [stack.adapted(replica, status) for replica in range(len(adaptations))]

    engine = {"name": "batched", "stacked": len(experiments), **asdict(settings)}
    own = callbacks or [()] * len(experiments)
    return _run_in_folders(
        experiments, adaptations, folders, cache, engine, train, own, resume=resume, say=say, all_shifts=all_shifts
    )
