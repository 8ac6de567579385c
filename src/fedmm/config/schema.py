"""An experiment as data: checked and built from the tables of a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedmm.algorithms import ALGORITHMS, AgnosticFedMM
from fedmm.config.dataclass_io import Table, as_table, build, choose
from fedmm.config.presets import preset_tables
from fedmm.core.aggregation import AGGREGATIONS, Aggregation
from fedmm.core.algorithm import Algorithm
from fedmm.core.errors import require, unknown
from fedmm.core.federation import Terms
from fedmm.core.mechanisms import TRANSMISSIONS, Transmission
from fedmm.core.objective import Objective
from fedmm.core.options import TrainOptions
from fedmm.data import DATASETS, PARTITIONS
from fedmm.data.datasets.per_site import KEY as PER_SITE
from fedmm.data.datasets.per_site import PerSite
from fedmm.data.domains import DataSet
from fedmm.data.partition import Partition, TargetSupervised
from fedmm.models import MODELS, Model
from fedmm.objectives import OBJECTIVES, SourceOnly
from fedmm.training.guard import Guard

_DEFAULT_NAMES = {
    "partition": "source_target",
    "objective": "dann",
    "algorithm": "fedmm_restrained",
    "aggregation": "mean",
    "transmission": "exact",
}
_NAMES_WITH_PRESET = {"objective": "dann", "algorithm": "fedmm"}  # presets are the paper's, and so is their algorithm
_WORST_SITE = "worst_site"
_GRIDS = ("sweep", "tune")
"""Tables of a file that belong to no single experiment, named like the commands that read them."""
SOURCE_ONLY = "source only"
"""The label of a run that does not adapt."""


@dataclass(frozen=True)
class Experiment:
    """A complete experiment, one field per section; :func:`experiment` builds it from tables and fills in the defaults.

    run: the training options. data: the data set. partition: which client holds which rows. model: the network to
    build. objective, algorithm: the loss and the federated method. aggregation: how the server combines updates.
    transmission: how an update is changed before it is sent. guard: what to do about a round that explodes.
    """

    run: TrainOptions
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
        """The terms on which clients take part."""
        return Terms(**self.run.terms, aggregation=self.aggregation, transmission=self.transmission)

    @property
    def label(self) -> str:
        """The run's name in tables and figures."""
        return self.run.label or (SOURCE_ONLY if self.ignores_target else self.algorithm.name)

    @property
    def ignores_target(self) -> bool:
        """Whether there is a target from which nothing is learnt."""
        return self.source_only and not self.labelled_only

    @property
    def looks_at_target(self) -> bool:
        """Whether target rows are trained on, or each site scales its rows by its own statistics."""
        return self.objective.adapts or isinstance(self.partition, TargetSupervised) or isinstance(self.data, PerSite)

    @property
    def labelled_only(self) -> bool:
        """Whether the data has no target: all rows are labelled."""
        data = self.data.of if isinstance(self.data, PerSite) else self.data
        return bool(getattr(data, "labelled_only", False))

    @property
    def source_only(self) -> bool:
        """Whether only the source's labels are learnt, without adapting to the target."""
        return isinstance(self.objective, SourceOnly) and not self.looks_at_target

    @property
    def adapts(self) -> bool:
        """Whether it makes sense to ask if adapting helped, compared with source only."""
        return self.objective.adapts or (isinstance(self.objective, SourceOnly) and self.looks_at_target)

    def tables(self) -> dict[str, Table]:
        """Return everything, defaults included, as tables from which :func:`experiment` makes the same experiment."""
        tables = {name: as_table(getattr(self, name)) for name in self.__dataclass_fields__ if name != "data"}
        return {"run": tables.pop("run"), "data": _data_table(self.data), **tables}


def experiment(tables: Mapping[str, Any]) -> Experiment:
    """Check and build an experiment from the tables of a TOML file.

    tables: by section, the options as in the file; unknown keys and values out of range are refused.

    By default it trains DANN with restrained FedMM, or with FedMM if there is a preset, on one source and one target
    client. The objective ``worst_site`` is short for ``source_only`` with an algorithm that weights its clients, which
    is agnostic FedMM unless another is named.
    """
    known = tuple(Experiment.__dataclass_fields__)
    for section, table in tables.items():
        require(section not in _GRIDS, f"a [{section}] table is for `fedmm {section}`; remove it here")
        if section not in known:
            raise unknown("section", section, known)
        require(isinstance(table, dict), f"{section} must be a section of its own: [{section}]")
    for section in ("data", "model"):
        preset_may_name = section == "model" and tables.get("run", {}).get("preset")
        require(bool(preset_may_name) or section in tables, f"the section [{section}] is missing")
    require(
        tables.get("data", {}).get("name") != "sites",
        "data.name = 'sites' says that rows stay at sites; run the file with `fedmm deploy run`",
    )
    full = _with_preset(_expand_worst_site(tables))
    for section, name in _DEFAULT_NAMES.items():
        full[section] = {"name": name, **full.get(section, {})}
    return Experiment(
        build(TrainOptions, full.get("run", {}), "run"),
        _data(full["data"]),
        choose(PARTITIONS, full["partition"], "partition"),
        choose(MODELS, full["model"], "model"),
        choose(OBJECTIVES, full["objective"], "objective"),
        choose(ALGORITHMS, full["algorithm"], "algorithm"),
        choose(AGGREGATIONS, full["aggregation"], "aggregation"),
        choose(TRANSMISSIONS, full["transmission"], "transmission"),
        build(Guard, full.get("guard", {}), "guard"),
    )


def _expand_worst_site(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tables with ``worst_site`` spelt out: weighting clients is up to the algorithm, for any objective."""
    objective = tables.get("objective", {})
    name = objective.get("name")
    if isinstance(name, str) and name not in (known := {*OBJECTIVES, _WORST_SITE}):
        raise unknown("objective.name", name, known)
    if name != _WORST_SITE:
        return tables
    algorithm = {"name": AgnosticFedMM.name, **tables.get("algorithm", {})}
    weighing = sorted(name for name, kind in ALGORITHMS.items() if kind.weighs_clients)
    named = str(algorithm["name"])
    require(
        named in weighing or named not in ALGORITHMS,
        f"objective.name = {_WORST_SITE!r} needs an algorithm that weighs its clients, and {named} does not; set "
        f"algorithm.name to one of {', '.join(weighing)}",
    )
    return {**tables, "objective": {**objective, "name": SourceOnly.name}, "algorithm": algorithm}


def _data(table: Table) -> DataSet:
    per_site = table.get(PER_SITE, False)
    require(isinstance(per_site, bool), f"data.{PER_SITE} must be true or false, not {per_site!r}")
    data = choose(DATASETS, {key: value for key, value in table.items() if key != PER_SITE}, "data")
    return PerSite(data) if per_site else data


def _data_table(data: DataSet) -> Table:
    return {**as_table(data.of), PER_SITE: True} if isinstance(data, PerSite) else as_table(data)


def _with_preset(tables: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables with the preset's values for missing keys; a model other than the preset's takes none."""
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
