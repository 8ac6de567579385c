"""An experiment as data: what a TOML file says, checked and built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fedmm.algorithms import ALGORITHMS
from fedmm.config.dataclass_io import Table, as_table, build, choose
from fedmm.config.presets import PRESETS, preset_tables
from fedmm.core.aggregation import AGGREGATIONS, Aggregation
from fedmm.core.algorithm import Algorithm
from fedmm.core.compression import Encoding
from fedmm.core.errors import require, unknown
from fedmm.core.federation import OnBadUpdate, Terms
from fedmm.core.mechanisms import TRANSMISSIONS, Transmission
from fedmm.core.objective import Objective
from fedmm.core.validation import at_least, flag, not_negative, one_of, positive, require_device
from fedmm.core.validators import validator
from fedmm.data import DATASETS, PARTITIONS
from fedmm.data.columns.per_site import KEY as PER_SITE
from fedmm.data.columns.per_site import PerSite
from fedmm.data.domains import DataSet
from fedmm.data.partition import Partition, TargetSupervised
from fedmm.models import MODELS, Model
from fedmm.models.precision import Precision
from fedmm.objectives import OBJECTIVES, SourceOnly
from fedmm.training.callbacks import DEFAULT, EarlyStopping
from fedmm.training.guard import Guard

_DEFAULT_NAMES = {
    "partition": "source_target",
    "objective": "dann",
    "algorithm": "fedmm_smoothed",
    "aggregation": "mean",
    "transmission": "exact",
}
_NAMES_WITH_PRESET = {"objective": "dann", "algorithm": "fedmm"}  # a preset is of the paper, and so is its algorithm
SOURCE_ONLY = "source only"
"""What a run that adapts nothing is called."""
_MOST_THREADS = 1024
_MOST_ACTORS = 10_000
_MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class RunOptions:
    """The section ``[run]``.

    label: what the run is called in tables and pictures (the algorithm's name by default, or ``source only``).
    rounds, seed, batch_size: as in :func:`fedmm.adapt`; evaluate_every: rounds between evaluations.
    probe_rows: how many unlabelled target rows are measured on in an evaluation; 0 for none.
    device: ``cpu``, ``cuda``, ... or ``auto``, the GPU where there is one.
    precision: of float32 products on a GPU: ``fp32`` (strict), ``tf32`` or ``bf16``.
    engine: ``in_process`` (the reference), ``batched`` (one program for all clients), ``ray`` (actors on one machine or
        a cluster), ``nvflare`` or ``nvflare_poc`` (a process a client, in NVFlare's simulator or proof of concept), or
        ``auto``.
    actors: ray: how many, 0 for one a core (or GPU). ray_address: of a cluster; empty for this machine alone.
    stacked: ray: each actor runs its clients as one program, as it does on a GPU. durable: they keep states on disk.
    threads: torch's threads; 0 leaves them as they are. Results are bit-identical for one number of threads.
    checkpoint_every, checkpoint_seconds: rounds and seconds between two checkpoints, 0 for none by that count.
    keep_checkpoints: how many of the last stay. best_by: the validator by which the best model is kept beside them.
    stop_by, patience, min_rounds, min_delta: as in :class:`fedmm.EarlyStopping`.
    track: ``tensorboard``, ``mlflow`` or both, where the run is shown while it goes on.
    keep_rows: whether a few rows of the data, and what the model makes of them, are kept in the run's folder, for
        pictures and reports.
    participation, on_bad_update, max_update_norm, max_update_ratio, uploads, broadcasts, secure_sum: as in
        :class:`fedmm.Terms`.
    client_weights: the paper's alpha_i by client name; clients that are not named weigh 1.
    preset: ``paper`` or ``authors``, for everything the file leaves out.
    """

    label: str = ""
    rounds: int = 200
    seed: int = 0
    batch_size: int = 64
    evaluate_every: int = 1
    probe_rows: int = 2000
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "fp32"
    engine: Literal["auto", "in_process", "batched", "ray", "nvflare", "nvflare_poc"] = "auto"
    actors: int = 0
    ray_address: str = ""
    stacked: bool = False
    durable: bool = False
    threads: int = 0
    checkpoint_every: int = 0
    checkpoint_seconds: float = 60.0
    keep_checkpoints: int = 2
    track: tuple[str, ...] = ()
    keep_rows: bool = True
    best_by: str = DEFAULT
    stop_by: str = ""
    patience: int = 50
    min_rounds: int = 0
    min_delta: float = 0.0
    participation: float = 1.0
    on_bad_update: OnBadUpdate = "stop"
    max_update_norm: float = 0.0
    max_update_ratio: float = 0.0
    uploads: Encoding = "exact"
    broadcasts: Encoding = "exact"
    secure_sum: bool = False
    client_weights: Mapping[str, float] = field(default_factory=dict)
    preset: str = ""

    def __post_init__(self) -> None:
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
        EarlyStopping(self.stop_by, self.patience, self.min_rounds, self.min_delta)
        for client, weight in self.client_weights.items():
            positive(f"client_weights.{client}", weight)
        if self.preset and self.preset not in PRESETS:
            raise unknown("preset", self.preset, PRESETS)

    @property
    def terms(self) -> dict[str, Any]:
        """What this section says of the terms."""
        names = (
            "participation", "on_bad_update", "max_update_norm", "max_update_ratio", "uploads", "broadcasts",
            "secure_sum",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    @property
    def stopping(self) -> EarlyStopping:
        """When the run ends early."""
        return EarlyStopping(self.stop_by, self.patience, self.min_rounds, self.min_delta)

    @property
    def torch_device(self) -> torch.device:
        """The device, refused where it is not there."""
        name = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        require_device(name, "run.device")
        return torch.device(name)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True)
class Experiment:
    """A whole experiment: one section a field."""

    run: RunOptions
    data: DataSet
    partition: Partition
    model: Model
    objective: Objective
    algorithm: Algorithm
    aggregation: Aggregation
    transmission: Transmission
    guard: Guard = field(default=Guard())

    @property
    def terms(self) -> Terms:
        """On what terms clients take part."""
        return Terms(**self.run.terms, aggregation=self.aggregation, transmission=self.transmission)

    @property
    def label(self) -> str:
        """What the run is called in tables and pictures."""
        return self.run.label or (SOURCE_ONLY if self.source_only else self.algorithm.name)

    @property
    def source_only(self) -> bool:
        """Whether nothing is adapted: the source's labels are learnt, and the target is not looked at."""
        learns_otherwise = isinstance(self.partition, TargetSupervised) or isinstance(self.data, PerSite)
        return isinstance(self.objective, SourceOnly) and not learns_otherwise

    def tables(self) -> dict[str, Table]:
        """Everything, defaults included, as tables from which :func:`experiment` makes the same experiment."""
        tables = {name: as_table(getattr(self, name)) for name in self.__dataclass_fields__ if name != "data"}
        return {"run": tables.pop("run"), "data": _data_table(self.data), **tables}


def experiment(tables: Mapping[str, Any]) -> Experiment:
    """Check and build an experiment from the tables of a TOML file.

    Without ``[partition]``, ``[objective]`` and ``[algorithm]``, or their names, it is DANN by the smoothed FedMM on a
    source and a target client; with a preset, by FedMM.
    """
    known = tuple(Experiment.__dataclass_fields__)
    for section, table in tables.items():
        if section not in known:
            raise unknown("section", section, known)
        require(isinstance(table, dict), f"{section} must be a section of its own: [{section}]")
    for section in ("data", "model"):
        preset_may_name = section == "model" and tables.get("run", {}).get("preset")
        require(bool(preset_may_name) or section in tables, f"the section [{section}] is missing")
    full = _with_preset(tables)
    for section, name in _DEFAULT_NAMES.items():
        full[section] = {"name": name, **full.get(section, {})}
    return Experiment(
        build(RunOptions, full.get("run", {}), "run"),
        _data(full["data"]),
        choose(PARTITIONS, full["partition"], "partition"),
        choose(MODELS, full["model"], "model"),
        choose(OBJECTIVES, full["objective"], "objective"),
        choose(ALGORITHMS, full["algorithm"], "algorithm"),
        choose(AGGREGATIONS, full["aggregation"], "aggregation"),
        choose(TRANSMISSIONS, full["transmission"], "transmission"),
        build(Guard, full.get("guard", {}), "guard"),
    )


def _data(table: Table) -> DataSet:
    per_site = table.get(PER_SITE, False)
    require(isinstance(per_site, bool), f"data.{PER_SITE} must be true or false, not {per_site!r}")
    data = choose(DATASETS, {key: value for key, value in table.items() if key != PER_SITE}, "data")
    return PerSite(data) if per_site else data


def _data_table(data: DataSet) -> Table:
    return {**as_table(data.of), PER_SITE: True} if isinstance(data, PerSite) else as_table(data)


def _with_preset(tables: Mapping[str, Any]) -> dict[str, Table]:
    """The tables with the preset's values where they have none; another model than the preset's takes none."""
    name = tables.get("run", {}).get("preset", "")
    require(isinstance(name, str), f"run.preset must be text, not {name!r}")
    if not name:
        return dict(tables)
    chosen = {section: tables.get(section, {}).get("name", default) for section, default in _NAMES_WITH_PRESET.items()}
    chosen["data"] = tables["data"].get("name")
    for section, value in chosen.items():
        require(isinstance(value, str), f"{section}.name must say which one to use")
    filled = preset_tables(name, **chosen)
    given = tables.get("model", {})
    if given.get("name", filled["model"]["name"]) != filled["model"]["name"]:
        filled["model"] = {}
    return {section: {**filled.get(section, {}), **tables.get(section, {})} for section in {**filled, **tables}}
