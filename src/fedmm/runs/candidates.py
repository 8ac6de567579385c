"""The methods that are compared on the data of one experiment file, each with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedmm.algorithms import ALGORITHMS
from fedmm.config.schema import SOURCE_ONLY, Experiment, experiment
from fedmm.config.sweep_grid import SWEEP
from fedmm.core.errors import require, unknown
from fedmm.core.options import DEFAULT_VALIDATOR
from fedmm.data.datasets.per_site import KEY as PER_SITE
from fedmm.data.datasets.per_site import PerSite
from fedmm.data.partition import TargetSupervised
from fedmm.objectives import OBJECTIVES

PER_SITE_LABEL = "per-site standardisation"
_NONE = "source_only"
_BASELINE, _FEDMM, _SMOOTHED = "fedavg_gda", "fedmm", "fedmm_smoothed"
_MOST_SEEDS = 100


@dataclass(frozen=True)
class Candidate:
    """A method by the name that tables show, and its experiments, one a seed."""

    label: str
    experiments: tuple[Experiment, ...]


def derive_candidates(tables: Mapping[str, Any], objectives: Sequence[str], seeds: int) -> list[Candidate]:
    """Source only, per-site standardisation, and FedAvgGDA and FedMM with each objective, on what the file says.

    All have the file's data, clients, model, rounds and batches, the seeds from the file's on, and its options of the
    objective and the algorithm as far as they know them. FedMM is the file's own algorithm if that is ``fedmm``, else
    ``fedmm_smoothed``; any other algorithm of the file is compared as well. No run ends early.
    """
    require(SWEEP not in tables, "a file with a [sweep] table is for `fedmm sweep`; remove it to compare methods")
    require(1 <= seeds <= _MOST_SEEDS, f"--seeds must be from 1 to {_MOST_SEEDS}, not {seeds}")
    own = experiment(tables)
    _require_comparable(own)
    chosen = list(dict.fromkeys(objectives))
    require(bool(chosen), "--objectives must name at least one objective, for example dann")
    for name in chosen:
        if name not in OBJECTIVES:
            raise unknown("objective in --objectives", name, OBJECTIVES)
        require(name != _NONE, f"--objectives need not name {_NONE}, which is always compared; leave it out")
    fedmm = own.algorithm.name if own.algorithm.name in (_FEDMM, _SMOOTHED) else _SMOOTHED
    methods = list(dict.fromkeys((_BASELINE, fedmm, own.algorithm.name)))

    def candidate(label: str, objective: str, algorithm: str, per_site: bool = False) -> Candidate:
        changed = dict(tables)
        changed["objective"] = _options(tables, "objective", objective, OBJECTIVES)
        changed["algorithm"] = _options(tables, "algorithm", algorithm, ALGORITHMS)
        changed["data"] = {**tables["data"], **({PER_SITE: True} if per_site else {})}
        run = {**tables.get("run", {}), "label": label, "best_by": DEFAULT_VALIDATOR, "stop_by": ""}
        first = own.run.seed
        return Candidate(
            label,
            tuple(experiment({**changed, "run": {**run, "seed": seed}}) for seed in range(first, first + seeds)),
        )

    return [
        candidate(SOURCE_ONLY, _NONE, _BASELINE),
        candidate(PER_SITE_LABEL, _NONE, _BASELINE, per_site=True),
        *(
            candidate(f"{ALGORITHMS[method].__name__} + {OBJECTIVES[objective].__name__}", objective, method)
            for method in methods
            for objective in chosen
        ),
    ]


def _options(tables: Mapping[str, Any], section: str, name: str, rows: Mapping[str, type]) -> dict[str, Any]:
    """The file's section for another row of its table: the name, and what that row knows of the file's options.

    Options of an adversary say nothing to an objective without one.
    """
    known = {field.name for field in fields(rows[name])} - ({"nu", "nu_schedule"} if name == _NONE else set())
    return {"name": name, **{key: value for key, value in tables.get(section, {}).items() if key in known}}


def _require_comparable(own: Experiment) -> None:
    """Refuse what leaves nothing to judge by, or judges by labels of the target."""
    require(
        not isinstance(own.partition, TargetSupervised),
        "target_supervised learns from the target's labels, which compare never looks at; use another partition",
    )
    require(
        not own.transmission.private,
        f"transmission {own.transmission.name!r} adds noise to updates, and what the verdict goes by, measured on the "
        'clients\' own rows, has none; compare with transmission.name = "exact", then train the chosen one with noise',
    )
    require(own.run.probe_rows > 0, "run.probe_rows must be above 0: the verdict goes by those target rows")
    require(
        not isinstance(own.data, PerSite),
        f"data.{PER_SITE} is one of the methods that are compared; leave it out of the file",
    )
