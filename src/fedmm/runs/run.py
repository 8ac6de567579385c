"""One experiment from its configuration to a finished run folder."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedmm._version import __version__
from fedmm.config.schema import Experiment
from fedmm.core.errors import Diverged, FedmmError, Say, require
from fedmm.data.datasets.per_site import KEY as PER_SITE
from fedmm.data.datasets.per_site import PerSite
from fedmm.data.domains import DomainPair
from fedmm.runs.build import DataCache, prepare, tested_rows
from fedmm.runs.evidence import count_trained_test_rows, shift_of_model, shift_table, shift_warning
from fedmm.runs.on_nvflare import every_round_kept, nvflare_engines
from fedmm.runs.on_ray import ray_engines
from fedmm.runs.report_data import EXHIBITS, exhibits
from fedmm.runs.resume import (
    keep_rows,
    keep_settings,
    only_begun,
    require_same_run,
    resume_points,
    settings_of,
)
from fedmm.runs.run_folder import (
    BOUNDARY,
    EXPERIMENT,
    MAPS,
    MODEL,
    REFUSED,
    SAMPLES,
    RunFolder,
    claim_folder,
    write_input,
)
from fedmm.runs.tracking import Tracks, require_trackers
from fedmm.training.adaptation import Adaptation, Adapted
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.callbacks import Callback, OnRound, best_file
from fedmm.training.checkpoints import checkpoints_of
from fedmm.training.history import History, Row
from fedmm.training.privacy import PrivacyAccount
from fedmm.training.progress import RoundProgress
from fedmm.training.snapshots import ResumePoint

_SAMPLE_IMAGES, _SAMPLE_POINTS, _GRID = 12, 300, 160
_ELSEWHERE = {"ray": ray_engines, "nvflare": nvflare_engines, "nvflare_poc": nvflare_engines}
"""Engines whose clients are in other processes."""

NO_TARGET_LABELS = "there are no target labels, so target accuracy was not measured"

Summary = dict[str, Any]


class DivergedRun(FedmmError):  # noqa: N818 - reads as what happened
    """A run that ended because a client diverged; its folder and ``summary`` hold what was good until then."""

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
    """Train as the experiment says and leave a run folder; its summary is returned.

    Everything is checked and built before the folder is made. Ctrl-C, or a client that diverges, leaves a folder with
    the rounds and the model up to then; the latter is raised after that.

    folder: where to write; one that is not empty is refused without ``overwrite`` or ``resume``.
    resume: go on from the newest checkpoint of a run in the folder, where one was started.
    progress: a bar on the terminal. say: told which engine runs, and why.
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
    if resume and (folder / EXPERIMENT).exists():
        require_same_run(experiment, folder)
    elif not (resume and only_begun(folder)):
        claim_folder(folder, overwrite=overwrite)
    say(f"engine {engine}: {why}")
    watching = [*([OnRound(on_round)] if on_round else []), *callbacks]
    if engine == "batched":
        settings = settings_of(folder, adaptation, experiment.run.precision, resume=resume)
        bar = RoundProgress(adaptation.label, adaptation.rounds, show=progress)
        own = [[bar, *watching]]
        (outcome,) = run_stack([experiment], [adaptation], [folder], cache, settings, own, resume=resume, say=say)
    else:
        outcome = _run_one(experiment, adaptation, folder, cache, watching, progress=progress, resume=resume, say=say)
    summary, error = outcome
    for line in _closing_words(summary, experiment, folder):
        say(line)
    if error:
        message = f"{error}; the run up to round {summary['rounds']} is in {folder}"
        raise DivergedRun(message, summary) from error
    return summary


def rows_inside(folder: Path) -> str:
    """A line on what others could see in a folder."""
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
    """Which engine runs a single experiment, and why."""
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
"""Trains several runs: the callbacks of each, and what each goes on from; their models, and what diverged."""


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
    """Train runs, and leave a run folder for each. engine: what summaries say of it. callbacks: further ones."""
    for note in dict.fromkeys(note for each in experiments for note in cache.pair(each, torch.device("cpu")).notes):
        say(note)
    best = [adaptation.best_model() for adaptation in adaptations]
    checkpoints = [
        checkpoints_of(experiment.run, folder, model)
        for experiment, folder, model in zip(experiments, folders, best, strict=True)
    ]
    points = resume_points(experiments, adaptations, folders, checkpoints, say) if resume else []
    outcomes: list[Outcome] = []
    with ExitStack() as opened:
        files, tracks = list[RunFolder](), list[Tracks]()
        for number, (experiment, adaptation, folder) in enumerate(zip(experiments, adaptations, folders, strict=True)):
            state, history = points[number] if points else (None, History())
            files.append(opened.enter_context(RunFolder(folder, experiment.tables(), history)))
            keep_rows(adaptation, folder)
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
    """Run experiments of one shape as one program, and leave a run folder for each; ``stop`` is asked now and then.

    callbacks: of each run. resume: go on from the checkpoints of the newest round that all of them have, where they
    were begun. all_shifts: whether runs that adapt estimate label shift too.
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


def finish_run(
    files: RunFolder,
    experiment: Experiment,
    adaptation: Adaptation,
    adapted: Adapted,
    cache: DataCache,
    engine: dict[str, Any],
    *,
    shifts: bool = True,
) -> Summary:
    """The model, what pictures need, and the summary. shifts: whether label shift is estimated."""
    pair = cache.pair(experiment, torch.device("cpu"))
    for event in adapted.history.events:
        if event["policy"] == "stop":
            files.append({"round": event["round"], "stopped": 1})
    adapted.save(files.folder / MODEL)
    if adapted.best:
        adapted.best.save(files.folder / best_file(adapted.best.by, "model-"))
    write_input(files.folder, pair)
    keep_rows = experiment.run.keep_rows
    files.tensors(SAMPLES, _samples(pair, keep_rows))
    files.tensors(EXHIBITS, exhibits(adaptation, adapted, pair, keep_rows))
    if keep_rows and pair.source.x.shape[1:] == (2,) and len(pair.source.x):
        files.tensors(BOUNDARY, _boundary(adapted, pair))
    if not keep_rows:
        files.remove(BOUNDARY, MAPS)
    summary = _summary(experiment, adaptation, adapted) | {"engine": engine, "precision": experiment.run.precision}
    tested = tested_rows(pair)
    summary["tested_rows"] = {name: len(rows.y) for name, rows in tested.items()}
    if "target" not in tested and len(pair.target.y):
        summary["note"] = NO_TARGET_LABELS
    summary["tested_rows_trained_on"] = count_trained_test_rows(pair) if experiment.looks_at_target else 0
    private = adaptation.terms.transmission.private
    shift = shift_of_model(adapted.predict_proba, pair) if shifts and not private else None
    summary["label_shift"] = None if shift is None else shift_table(shift, pair.class_names)
    files.summarise(summary)
    return summary


def _samples(pair: DomainPair, keep_rows: bool) -> dict[str, torch.Tensor]:
    """The first rows of both domains; without ``keep_rows`` none, of the same shape and type."""
    count = (_SAMPLE_POINTS if pair.source.x.dim() == 2 else _SAMPLE_IMAGES) if keep_rows else 0
    return {
        "source_x": pair.source.x[:count],
        "source_y": pair.source.y[:count],
        "target_x": pair.target.x[:count],
        "target_y": pair.target.y[:count],
    }


def _boundary(adapted: Adapted, pair: DomainPair) -> dict[str, torch.Tensor]:
    """The predicted probability of class 1 on a grid around all points."""
    points = torch.cat([pair.source.x, pair.target.x])
    low, high = points.amin(dim=0), points.amax(dim=0)
    margin = torch.where(high > low, 0.1 * (high - low), 1.0)
    grid_x, grid_y = (torch.linspace(float(low[i] - margin[i]), float(high[i] + margin[i]), _GRID) for i in range(2))
    y, x = torch.meshgrid(grid_y, grid_x, indexing="ij")
    probability = adapted.predict_proba(torch.stack([x.flatten(), y.flatten()], dim=1))[:, 1]
    return {"grid_x": grid_x, "grid_y": grid_y, "probability": probability.view(_GRID, _GRID)}


def _summary(experiment: Experiment, adaptation: Adaptation, adapted: Adapted) -> Summary:
    history = adapted.history
    return {
        "kind": "run",
        "status": adapted.status,
        "label": experiment.label,
        "algorithm": experiment.algorithm.name,
        "objective": experiment.objective.name,
        "data": experiment.data.name,
        **({PER_SITE: True} if isinstance(experiment.data, PerSite) else {}),
        "partition": experiment.partition.name,
        "model": experiment.model.name,
        "seed": experiment.run.seed,
        "rounds": len(history),
        "target_accuracy": history.last("target_accuracy"),
        "source_accuracy": history.last("source_accuracy"),
        **{name: _finite(history.last(name)) for name in adaptation.measures},
        **_chosen(adapted, adaptation.measures),
        "stopped_early": adapted.stopped,
        "seconds": history.total("seconds"),
        "bytes_up": history.total("bytes_up"),
        "bytes_down": history.total("bytes_down"),
        "refused": history.total("refused"),
        **({"privacy": _privacy(adaptation.account, history)} if adaptation.account else {}),
        "guard": history.events,
        "parameters": adaptation.function.layout.size,
        "clients": {
            holding.name: {
                "source_rows": len(holding.source) if holding.source is not None else 0,
                "target_rows": len(holding.target) if holding.target is not None else 0,
            }
            for holding in adaptation.client_data
        },
        **provenance(adaptation.function.layout.device),
    }


def _chosen(adapted: Adapted, measures: Sequence[str]) -> Summary:
    """The best model by a validator, and what was measured in its round; under another key where labels chose it."""
    best = adapted.best
    if best is None:
        return {"best": None}
    about = {"by": best.by.name, "round": best.round, "value": best.value, "model": best_file(best.by, "model-")}
    return {
        "oracle_best" if best.by.oracle else "best": about | {name: _finite(best.row.get(name)) for name in measures}
    }


def _privacy(account: PrivacyAccount, history: History) -> Summary:
    """What the run's noise was worth."""
    epsilon = _finite(account.spent([int(many or 0) for many in history["clients"]]))
    about = {"delta": account.noise.delta, "trust": account.noise.trust, "neighbours": "one client replaced"}
    return {"epsilon": epsilon, **about}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def provenance(device: torch.device) -> Summary:
    """What a number was computed on."""
    return {
        "versions": {"fedmm": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }
