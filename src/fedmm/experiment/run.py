"""One experiment from its configuration to a finished run folder."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedmm.core.errors import FedmmError, unknown
from fedmm.data.domains import DomainPair
from fedmm.data.holdings import TensorRows
from fedmm.data.partition import Share
from fedmm.experiment.adapt import Adaptation, Adapted
from fedmm.experiment.adaptation import Client
from fedmm.experiment.config import Experiment
from fedmm.experiment.folder import BOUNDARY, MODEL, SAMPLES, RunFolder, claim_folder
from fedmm.experiment.history import Row

_SAMPLE_IMAGES, _SAMPLE_POINTS, _GRID = 12, 300, 160
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
    progress: bool = True,
    on_round: Callable[[Row], None] | None = None,
) -> Summary:
    """Train as the experiment says and leave a run folder; its summary is returned.

    Everything is checked and built before the folder is made. Ctrl-C, or a client that diverges, leaves a folder with
    the rounds and the model up to then; the latter is raised after that.
    """
    if experiment.run.threads:
        torch.set_num_threads(experiment.run.threads)
    pair = experiment.data.load()
    adaptation = _prepare(experiment, pair)
    claim_folder(folder, overwrite=overwrite)
    with RunFolder(folder, experiment.tables()) as files:

        def after_round(row: Row) -> None:
            files.append(row)
            if on_round:
                on_round(row)

        adapted, error = adaptation.run(
            evaluate_every=experiment.run.evaluate_every, progress=progress, on_round=after_round
        )
        adapted.save(folder / MODEL)
        files.tensors(SAMPLES, _samples(pair))
        if pair.source.x.shape[1:] == (2,):
            files.tensors(BOUNDARY, _boundary(adapted, pair))
        summary = _summary(experiment, adaptation, adapted)
        files.summarise(summary)
    if error:
        raise DivergedRun(f"{error}; the run up to round {len(adapted.history)} is in {folder}", summary) from error
    return summary


def _prepare(experiment: Experiment, pair: DomainPair) -> Adaptation:
    run = experiment.run
    shares = experiment.partition.split(pair, run.seed)
    for client in run.client_weights:
        if client not in [share.name for share in shares]:
            raise unknown("client in run.client_weights", client, [share.name for share in shares])
    return Adaptation(
        [_client(share, pair, run.client_weights.get(share.name, 1.0)) for share in shares],
        experiment.model.build(tuple(pair.source.x.shape[1:]), pair.classes, run.seed),
        experiment.objective,
        experiment.algorithm,
        run.rounds,
        validation={"target": pair.target_test, "source": pair.source_test},
        batch_size=run.batch_size,
        seed=run.seed,
        device=run.torch_device,
        dtype=run.torch_dtype,
    )


def _client(share: Share, pair: DomainPair, weight: float) -> Client:
    return Client(
        source=TensorRows(pair.source.x, pair.source.y, index=share.source) if len(share.source) else None,
        target=TensorRows(pair.target.x, index=share.target) if len(share.target) else None,
        name=share.name,
        weight=weight,
    )


def _samples(pair: DomainPair) -> dict[str, torch.Tensor]:
    count = _SAMPLE_POINTS if pair.source.x.dim() == 2 else _SAMPLE_IMAGES
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
    margin = 0.1 * (high - low)
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
        "partition": experiment.partition.name,
        "model": experiment.model.name,
        "seed": experiment.run.seed,
        "rounds": len(history),
        "target_accuracy": history.last("target_accuracy"),
        "source_accuracy": history.last("source_accuracy"),
        "seconds": history.total("seconds"),
        "bytes_up": history.total("bytes_up"),
        "bytes_down": history.total("bytes_down"),
        "parameters": adaptation.function.layout.size,
        "clients": {
            holding.name: {
                "source_rows": len(holding.source) if holding.source is not None else 0,
                "target_rows": len(holding.target) if holding.target is not None else 0,
            }
            for holding in adaptation.holdings
        },
        **provenance(adaptation.function.layout.device),
    }


def provenance(device: torch.device) -> Summary:
    """What a number was computed on."""
    from fedmm import __version__  # noqa: PLC0415 - the package imports this module

    return {
        "versions": {"fedmm": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }
