"""A run's folder opened again: its model, its classes, and how files become rows for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedmm.core.checks import one_of, require_device
from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError, require
from fedmm.core.problem import Statistics
from fedmm.data.inputs import Input
from fedmm.experiment.checkpoints import FOLDER
from fedmm.experiment.config import Experiment, experiment
from fedmm.experiment.folder import EXPERIMENT, INPUT, MODEL, SAMPLES, SUMMARY
from fedmm.experiment.input_file import read_input
from fedmm.experiment.predictor import Predictor, rebuild_model
from fedmm.experiment.snapshots import load_snapshot
from fedmm.experiment.toml import read_toml
from fedmm.models import Model, Network

Checkpoint = Literal["last", "best", "oracle best"]
_BEST: dict[str, Checkpoint] = {"best.safetensors": "best", "oracle-best.safetensors": "oracle best"}
_SHOWN_RUNS = 3


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run that left a model.

    checkpoint, round: which of its models this is, and after how many rounds; ``oracle best`` was chosen with labels of
        the target.
    class_names: one for each column of probabilities; input: how files become rows, None where the rows are a built-in
        data set's own.
    """

    folder: Path
    experiment: Experiment
    predictor: Predictor
    checkpoint: Checkpoint
    round: int
    class_names: tuple[str, ...]
    input: Input | None

    def sample_rows(self) -> Tensor | None:
        """A few stored rows of both domains, ``[rows, *stored]``, in the dtype in which clients hold them."""
        path = self.folder / SAMPLES
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                parts = [file.get_tensor(name) for name in ("source_x", "target_x")]
        except (OSError, SafetensorError) as problem:
            raise FedmmError(f"{path} cannot be read as a safetensors file: {problem}") from problem
        stored = self.predictor.show.stored
        held = [part for part in parts if len(part) and tuple(part.shape[1:]) == stored]
        return torch.cat(held) if held else None


def open_run(folder: Path, checkpoint: str = "last", *, device: torch.device | str = "cpu") -> FinishedRun:
    """The run in a folder with its last model, or with the best one that it kept."""
    one_of("--checkpoint", checkpoint, ("last", "best"))
    require_device(device, "--device")
    _require_run(folder)
    each = experiment(read_toml(folder / EXPERIMENT))
    seed, model = each.run.seed, without_start(each.model)

    def build(shape: tuple[int, ...], classes: int) -> Network:
        return model.build(shape, classes, seed)

    predictor = rebuild_model(folder / MODEL, build, device=device)
    summary = _json(folder / SUMMARY)
    rounds = int(summary.get("rounds") or 0)
    chosen: Checkpoint = "last"
    if checkpoint == "best":
        kept = [name for name in _BEST if (folder / FOLDER / name).exists()]
        require(bool(kept), f"{folder} keeps no best model; give --checkpoint last, or run it again with run.best_by")
        state, _ = load_snapshot(folder / FOLDER / kept[0], torch.device("cpu"))
        predictor = predictor.at(state, _prediction_statistics(state, each, summary))
        chosen, rounds = _BEST[kept[0]], state.round
    names, prepared = _classes_and_input(folder, each, predictor.classes)
    return FinishedRun(folder, each, predictor, chosen, rounds, names, prepared)


def _require_run(folder: Path) -> None:
    try:
        require("\0" not in str(folder) and folder.is_dir(), f"there is no folder {folder}; name the folder of a run")
        if (folder / EXPERIMENT).exists():
            require(
                (folder / MODEL).exists(), f"{folder} holds no {MODEL} yet; let its run end, or stop it with Ctrl-C"
            )
            return
        runs = sorted(path.parent for path in folder.glob(f"*/{EXPERIMENT}"))
    except OSError as problem:
        raise FedmmError(f"{folder} cannot be read: {problem.strerror}") from problem
    several = f": it holds several, for example {', '.join(map(str, runs[:_SHOWN_RUNS]))}" if runs else ""
    raise FedmmError(f"{folder} is not the folder of one run{several or ', which has an ' + EXPERIMENT}")


def without_start(model: Model) -> Model:
    """The same network without the file of weights that it began with, which the saved model replaces."""
    start: dict[str, Any] = {"weights": ""} if any(field.name == "weights" for field in fields(model)) else {}
    return replace(model, **start)


def _prediction_statistics(state: FederatedState, each: Experiment, summary: Mapping[str, Any]) -> Statistics:
    """As in training: the server's or, where clients keep their own, the mean of those that hold target rows."""
    if each.model.batch_norm != "local" or not state.client_statistics:
        return state.statistics
    clients = summary.get("clients") or {}
    targets = [name for name in state.client_statistics if (clients.get(name) or {}).get("target_rows")]
    own = [state.client_statistics[name] for name in sorted(targets or state.client_statistics)]
    return {
        name: torch.stack([one[name] for one in own]).double().mean(dim=0).to(tensor.dtype)
        for name, tensor in state.statistics.items()
    }


def _classes_and_input(folder: Path, each: Experiment, classes: int) -> tuple[tuple[str, ...], Input | None]:
    """The names of the classes and the way from files to rows; of older runs, the data set's own names or numbers."""
    if (folder / INPUT).exists():
        names, given = read_input(folder)
        require(len(names) == classes, f"{folder / INPUT} names {len(names)} classes, but the model has {classes}")
        return names, given
    try:
        known = tuple(each.data.load().class_names)
    except FedmmError:
        known = ()
    return known if len(known) == classes else tuple(map(str, range(classes))), None


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise FedmmError(f"{path} cannot be read as JSON: {problem}") from problem
    require(isinstance(values, dict), f"{path} must hold a JSON object, not {type(values).__name__}")
    return dict(values)
