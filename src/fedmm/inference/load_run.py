"""Open the folder of a finished run: its model, its classes, and how files become rows for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedmm.config.schema import Experiment
from fedmm.config.sites import experiment_anywhere
from fedmm.config.toml import read_toml
from fedmm.core.errors import FedmmError, require
from fedmm.core.files import is_name
from fedmm.core.signals.thresholds import to_probability
from fedmm.core.validation import one_of, require_device
from fedmm.data.datasets.per_site import KEY as PER_SITE
from fedmm.data.datasets.per_site import PerSite
from fedmm.data.domains import Input
from fedmm.models import Network
from fedmm.runs.run_folder import EXPERIMENT, INPUT, MODEL, SAMPLES, SUMMARY, read_input
from fedmm.training.predictor import Predictor, rebuild_model

Checkpoint = Literal["last", "best", "oracle best"]
_BEST: dict[str, Checkpoint] = {"best": "best", "oracle_best": "oracle best"}
_SHOWN_RUNS = 3


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run with one of its models.

    checkpoint, round: which of its models this is, and after how many rounds; ``oracle best`` was chosen with target
        labels. chosen_by: the validator that chose it, empty for the last one.
    class_names: one per column of probabilities. input: how files become rows; None if the rows are a built-in data
        set's own.
    fingerprint: of the data, as returned by ``fingerprint_pair``; None if unknown.
    temperature, bias: the calibration (:mod:`fedmm.inference.calibrate`); by default none.
    log_odds_threshold: the calibrated log odds from which on the second of two classes is predicted; None for the
        likeliest class.
    """

    folder: Path
    experiment: Experiment
    predictor: Predictor
    checkpoint: Checkpoint
    round: int
    class_names: tuple[str, ...]
    input: Input | None
    chosen_by: str = ""
    fingerprint: Mapping[str, Any] | None = None
    temperature: float = 1.0
    bias: float = 0.0
    log_odds_threshold: float | None = None

    @property
    def threshold(self) -> float | None:
        """The probability from which on the second of two classes is predicted; None for the likeliest class."""
        return to_probability(self.log_odds_threshold)

    @property
    def model_name(self) -> str:
        """The model's round and checkpoint, in words."""
        words = f"{self.checkpoint} by {self.chosen_by}" if self.chosen_by else self.checkpoint
        oracle = ", chosen with labels of the target" if self.checkpoint == "oracle best" else ""
        return f"round {self.round}, {words}{oracle}"

    def require_rows_of_files(self) -> None:
        """Raise if the model's rows cannot be made from a file alone."""
        require(
            not isinstance(self.experiment.data, PerSite),
            f"the model of {self.folder} takes rows that each site standardised by its own mean and deviation "
            f"(data.{PER_SITE}), which a file does not say; standardise the files of each site, and train on those",
        )

    def sample_rows(self) -> Tensor | None:
        """Return a few stored rows of both domains, ``[rows, *stored]``, in the dtype in which clients hold them.

        Empty if the run kept none; None if it left no file of them, or they have another shape than the model takes.
        """
        path = self.folder / SAMPLES
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                parts = [file.get_tensor(name) for name in ("source_x", "target_x")]
        except (OSError, SafetensorError) as problem:
            raise FedmmError(f"{path} cannot be read as a safetensors file: {problem}") from problem
        stored = self.predictor.show.stored
        held = [part for part in parts if tuple(part.shape[1:]) == stored]
        return torch.cat(held) if held else None


def open_run(folder: Path, model: str | None = None, *, device: torch.device | str = "cpu") -> FinishedRun:
    """Open the run in a folder with one of its models.

    folder: as left by :func:`fedmm.run_experiment` or ``fedmm run``. device: where the model predicts.
    model: ``best`` for the model that the run reported as its best, ``last`` for that of its last round; by default the
    best one if the run kept one, otherwise the last.
    """
    one_of("--model", model or "best", ("best", "last"))
    require_device(device, "--device")
    _require_run(folder)
    experiment = experiment_anywhere(read_toml(folder / EXPERIMENT))
    seed, network = experiment.run.seed, experiment.model.untrained()

    def build(shape: tuple[int, ...], classes: int) -> Network:
        return network.build(shape, classes, seed)

    summary = _json(folder / SUMMARY)
    chosen, file, rounds, by = _which(folder, model, summary)
    predictor = rebuild_model(folder / file, build, device=device)
    names, prepared = _classes_and_input(folder, experiment, predictor.classes)
    return FinishedRun(folder, experiment, predictor, chosen, rounds, names, prepared, by, summary.get("fingerprint"))


def _require_run(folder: Path) -> None:
    try:
        require("\0" not in str(folder) and folder.is_dir(), f"there is no folder {folder}; give the folder of a run")
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


def _which(folder: Path, model: str | None, summary: Mapping[str, Any]) -> tuple[Checkpoint, str, int, str]:
    """Return the kind, file and round of the requested model, and the validator that chose it."""
    for name, chosen in _BEST.items() if model != "last" else ():
        about = summary.get(name)
        if isinstance(about, dict) and is_name(str(about.get("model"))):
            return chosen, str(about["model"]), int(about.get("round") or 0), str(about.get("by"))
    require(model != "best", f"{folder} keeps no best model; give --model last, or run it again with run.best_by")
    return "last", MODEL, int(summary.get("rounds") or 0), ""


def _classes_and_input(folder: Path, experiment: Experiment, classes: int) -> tuple[tuple[str, ...], Input | None]:
    """Return the class names and how files become rows; for older runs, the data set's names or numbers, and None."""
    if (folder / INPUT).exists():
        names, given = read_input(folder)
        require(len(names) == classes, f"{folder / INPUT} names {len(names)} classes, but the model has {classes}")
        return names, given
    try:
        known = tuple(experiment.data.load().class_names)
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
