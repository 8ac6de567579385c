"""Write the results of a run: its models, data for pictures and reports, and the summary."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from typing import Any

import torch

from fedmm._version import __version__
from fedmm.config.schema import Experiment
from fedmm.data.datasets.per_site import KEY as PER_SITE
from fedmm.data.datasets.per_site import PerSite
from fedmm.data.domains import DomainPair
from fedmm.runs.build import DataCache, select_test_rows
from fedmm.runs.evidence import count_trained_test_rows, shift_of_model, shift_table
from fedmm.runs.report_data import EXHIBITS, exhibits
from fedmm.runs.run_folder import BOUNDARY, MAPS, MODEL, SAMPLES, RunFolder, write_input
from fedmm.training.adaptation import Adaptation, Adapted
from fedmm.training.callbacks import best_file
from fedmm.training.fingerprint import fingerprint_pair
from fedmm.training.history import History
from fedmm.training.privacy import PrivacyAccount

_SAMPLE_IMAGES, _SAMPLE_POINTS, _GRID = 12, 300, 160
NO_TARGET_LABELS = "there are no target labels, so target accuracy was not measured"

Summary = dict[str, Any]


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
    """Write a run's models, data for reports, and summary; return the summary. shifts: estimate label shift."""
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
    tested = select_test_rows(pair)
    summary["tested_rows"] = {name: len(rows.y) for name, rows in tested.items()}
    if "target" not in tested and len(pair.target.y):
        summary["note"] = NO_TARGET_LABELS
    summary["tested_rows_trained_on"] = count_trained_test_rows(pair) if experiment.looks_at_target else 0
    private = adaptation.terms.transmission.private
    if not private:  # fingerprints and label shift are computed from rows without noise
        summary["fingerprint"] = fingerprint_pair(pair)
    shift = shift_of_model(adapted.predict_proba, pair) if shifts and not private else None
    summary["label_shift"] = None if shift is None else shift_table(shift, pair.class_names)
    files.summarise(summary)
    return summary


def _samples(pair: DomainPair, keep_rows: bool) -> dict[str, torch.Tensor]:
    """Return the first rows of both domains; without ``keep_rows`` zero rows of the same shape and dtype."""
    count = (_SAMPLE_POINTS if pair.source.x.dim() == 2 else _SAMPLE_IMAGES) if keep_rows else 0
    return {
        "source_x": pair.source.x[:count],
        "source_y": pair.source.y[:count],
        "target_x": pair.target.x[:count],
        "target_y": pair.target.y[:count],
    }


def _boundary(adapted: Adapted, pair: DomainPair) -> dict[str, torch.Tensor]:
    """Return the predicted probability of class 1 on a grid around all points."""
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
        **(
            {"may_stop": {"rounds": experiment.run.rounds, **experiment.run.stopping}} if experiment.run.stop_by else {}
        ),
        "target_accuracy": history.last("target_accuracy"),
        "source_accuracy": history.last("source_accuracy"),
        **{name: _finite(history.last(name)) for name in adaptation.measures},
        **_describe_best(adapted, adaptation.measures),
        "stopped_early": adapted.stopped,
        "seconds": history.total("seconds"),
        "bytes_up": history.total("bytes_up"),
        "bytes_down": history.total("bytes_down"),
        "refused": history.total("refused"),
        **({"privacy": _privacy(adaptation.account, history)} if adaptation.account else {}),
        "guard": history.events,
        "parameters": adaptation.function.layout.size,
        "clients": {
            client_data.name: {
                "source_rows": len(client_data.source) if client_data.source is not None else 0,
                "target_rows": len(client_data.target) if client_data.target is not None else 0,
            }
            for client_data in adaptation.client_data
        },
        **_site_weights(adaptation, adapted),
        **provenance(adaptation.function.layout.device),
    }


def no_best_model(best_by: str) -> str:
    """Return a message for a run whose validator could not be measured."""
    return f"no model is kept as the best: {best_by} could not be measured in any round"


def _site_weights(adaptation: Adaptation, adapted: Adapted) -> Summary:
    """Return lambda after the last round, by client, if the algorithm's server weights the clients' losses."""
    weights = adapted.state.server.get("weights")
    if weights is None:
        return {}
    names = sorted(client_data.name for client_data in adaptation.client_data)
    return {"site_weights": dict(zip(names, weights.tolist(), strict=True))}


def _describe_best(adapted: Adapted, measures: Sequence[str]) -> Summary:
    """Describe the best model by a validator and its round, under ``oracle_best`` if target labels chose it."""
    best = adapted.best
    if best is None:
        return {"best": None}
    about = {"by": best.by.name, "round": best.round, "value": best.value, "model": best_file(best.by, "model-")}
    return {
        "oracle_best" if best.by.oracle else "best": about | {name: _finite(best.row.get(name)) for name in measures}
    }


def _privacy(account: PrivacyAccount, history: History) -> Summary:
    """Return the differential privacy of the run."""
    epsilon = _finite(account.spent([int(many or 0) for many in history["clients"]]))
    about = {"delta": account.noise.delta, "trust": account.noise.trust, "neighbours": "one client replaced"}
    return {"epsilon": epsilon, **about}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def provenance(device: torch.device) -> Summary:
    """Return the versions and the hardware with which numbers were computed."""
    return {
        "versions": {"fedmm": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }
