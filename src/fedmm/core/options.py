"""The options of a training run: the section ``[run]`` of an experiment. Importing this module needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from fedmm.core.errors import require, unknown
from fedmm.core.signals.validators import validator

if TYPE_CHECKING:
    import torch

PRESETS = {
    "paper": "the hyperparameters of the paper's text: penalties 1, fixed input mean",
    "authors": "those of the paper's published program: penalties 2, gradient scales, batch-mean centring",
}
DEFAULT_VALIDATOR = "target_information"
TERMS = (
    "participation", "on_bad_update", "max_update_norm", "max_update_ratio", "uploads", "broadcasts", "secure_sum",
)  # fmt: skip
"""The options that belong to ``Terms``."""
_MOST_THREADS = 1024
_MOST_ACTORS = 10_000
_MOST_ROWS = 1_000_000

Affects = Literal["numbers", "seed", "rounding", "record", "choice", "place", "name"]
"""What an option affects.

numbers: the results. seed: which of several runs of a method this is. rounding: only the last bits. record: the
precision of the computation, and how often metrics are evaluated. choice: which model is kept as the best. place: where
and how often things are saved, and which processes compute. name: what the run is called.
"""


def _option(default: Any, affects: Affects) -> Any:
    return field(default=default, metadata={"affects": affects})


@dataclass(frozen=True)
class TrainOptions:
    """The options of a training run, and the section ``[run]`` of an experiment.

    label: the run's name in tables and figures (by default the algorithm's name, or ``source only``).
    rounds, seed, batch_size: as in :func:`fedmm.adapt`; evaluate_every: rounds between evaluations.
    probe_rows: the maximum number of unlabelled target rows that are evaluated; 0 for none.
    device: ``cpu``, ``cuda``, ... or ``auto``, the GPU if there is one.
    dtype: of all parameters and inputs.
    precision: of float32 products on a GPU: ``fp32`` (strict), ``tf32`` or ``bf16``.
    engine: ``in_process`` (the reference), ``batched`` (one program for all clients), ``ray`` (actors on one machine or
        a cluster), ``nvflare`` or ``nvflare_poc`` (one process per client, in NVFlare's simulator or proof of concept),
        or ``auto``.
    actors: for ray, their number; 0 for one per core (or GPU). ray_address: of a cluster; empty for this machine only.
    stacked: for ray, each actor runs its clients as one program, as on a GPU. durable: actors keep states on disk.
    threads: torch's threads; 0 leaves them as they are. Results are bit-identical for a fixed number of threads.
    checkpoint_every, checkpoint_seconds: rounds and seconds between two checkpoints; 0 turns that rule off.
    keep_checkpoints: how many of the latest are kept. best_by: the validator of the best model, which is kept as well.
    stop_by, patience, min_rounds, min_delta: as in :class:`fedmm.EarlyStopping`.
    track: where to show the run live: ``tensorboard``, ``mlflow`` or both.
    keep_rows: whether to save a few rows of data with the model's predictions in the run's folder, for figures and
        reports.
    participation, on_bad_update, max_update_norm, max_update_ratio, uploads, broadcasts, secure_sum: as in
        :class:`fedmm.Terms`.
    client_weights: the paper's alpha_i by client name; clients that are not named have weight 1.
    preset: ``paper`` or ``authors``, for everything that the file leaves out.

    The metadata ``affects`` of a field says what it changes. Resuming a run, digests of results and reports ignore
    options that make no difference to them.
    """

    label: str = _option("", "name")
    rounds: int = _option(200, "numbers")
    seed: int = _option(0, "seed")
    batch_size: int = _option(64, "numbers")
    evaluate_every: int = _option(1, "record")
    probe_rows: int = _option(2000, "numbers")
    device: str = _option("cpu", "rounding")
    dtype: Literal["float32", "float64"] = _option("float32", "numbers")
    precision: Literal["fp32", "tf32", "bf16"] = _option("fp32", "record")
    engine: Literal["auto", "in_process", "batched", "ray", "nvflare", "nvflare_poc"] = _option("auto", "rounding")
    actors: int = _option(0, "place")
    ray_address: str = _option("", "place")
    stacked: bool = _option(False, "rounding")
    durable: bool = _option(False, "place")
    threads: int = _option(0, "rounding")
    checkpoint_every: int = _option(0, "place")
    checkpoint_seconds: float = _option(60.0, "place")
    keep_checkpoints: int = _option(2, "place")
    track: tuple[str, ...] = _option((), "place")
    keep_rows: bool = _option(True, "place")
    best_by: str = _option(DEFAULT_VALIDATOR, "choice")
    stop_by: str = _option("", "numbers")
    patience: int = _option(50, "numbers")
    min_rounds: int = _option(0, "numbers")
    min_delta: float = _option(0.0, "numbers")
    participation: float = _option(1.0, "numbers")
    on_bad_update: Literal["stop", "skip"] = _option("stop", "numbers")
    max_update_norm: float = _option(0.0, "numbers")
    max_update_ratio: float = _option(0.0, "numbers")
    uploads: Literal["exact", "fp16", "int8"] = _option("exact", "numbers")
    broadcasts: Literal["exact", "fp16", "int8"] = _option("exact", "numbers")
    secure_sum: bool = _option(False, "numbers")
    client_weights: Mapping[str, float] = field(default_factory=dict, metadata={"affects": "numbers"})
    preset: str = _option("", "numbers")

    def __post_init__(self) -> None:
        from fedmm.core.federation import Terms  # noqa: PLC0415 - torch
        from fedmm.core.validation import at_least, flag, not_negative, one_of, positive  # noqa: PLC0415 - torch

        at_least("rounds", self.rounds, 1)
        at_least("seed", self.seed, 0)
        at_least("batch_size", self.batch_size, 1)
        require(self.batch_size <= _MOST_ROWS, f"batch_size must be at most {_MOST_ROWS}, not {self.batch_size}")
        at_least("evaluate_every", self.evaluate_every, 1)
        at_least("probe_rows", self.probe_rows, 0)
        at_least("actors", self.actors, 0)
        require(self.actors <= _MOST_ACTORS, f"actors must be at most {_MOST_ACTORS}, not {self.actors}")
        at_least("threads", self.threads, 0)
        require(self.threads <= _MOST_THREADS, f"threads must be at most {_MOST_THREADS}, not {self.threads}")
        at_least("checkpoint_every", self.checkpoint_every, 0)
        not_negative("checkpoint_seconds", self.checkpoint_seconds)
        at_least("keep_checkpoints", self.keep_checkpoints, 1)
        flag("keep_rows", self.keep_rows)
        for tracker in self.track:
            one_of("track", tracker, ("tensorboard", "mlflow"))
        if self.best_by:
            validator(self.best_by, "best_by")
        Terms(**self.terms)
        require_stopping(**self.stopping)
        for client, weight in self.client_weights.items():
            positive(f"client_weights.{client}", weight)
        if self.preset and self.preset not in PRESETS:
            raise unknown("preset", self.preset, PRESETS)

    @property
    def terms(self) -> dict[str, Any]:
        """The options that belong to :class:`fedmm.Terms`."""
        return {name: getattr(self, name) for name in TERMS}

    @property
    def stopping(self) -> dict[str, Any]:
        """The options that belong to :class:`fedmm.EarlyStopping`."""
        return {name: getattr(self, name) for name in ("stop_by", "patience", "min_rounds", "min_delta")}

    @property
    def torch_device(self) -> torch.device:
        """The torch device; refused if this machine does not have it."""
        import torch  # noqa: PLC0415 - slow to import

        from fedmm.core.validation import require_device  # noqa: PLC0415 - torch

        name = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        require_device(name, "run.device")
        return torch.device(name)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of parameters and gradients."""
        import torch  # noqa: PLC0415 - slow to import

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


def options_that_affect(*what: Affects) -> dict[str, Any]:
    """Return the options that affect any of these, by name, with their defaults."""
    return {
        option.name: {} if option.default is MISSING else option.default
        for option in fields(TrainOptions)
        if option.metadata["affects"] in what
    }


def require_stopping(stop_by: str, patience: int, min_rounds: int, min_delta: float) -> None:
    """Refuse invalid options of early stopping."""
    from fedmm.core.validation import at_least, not_negative  # noqa: PLC0415 - torch

    if stop_by:
        validator(stop_by, "stop_by")
    at_least("patience", patience, 1)
    at_least("min_rounds", min_rounds, 0)
    not_negative("min_delta", min_delta)
