"""The comparisons that ``fedmm demo`` runs on data that ships with our dependencies: a source and a target site."""

from __future__ import annotations

from typing import Any

from fedmm.config.schema import Experiment, experiment
from fedmm.core.errors import unknown

_LOCAL = {"local_steps": 20}
# The digits' penalty and rounds were chosen without target labels, by benchmarks/choose_demo_penalty.py.

DEMOS: dict[str, dict[str, Any]] = {
    "digits": {
        "title": "scanned digits: the target site's scanner is turned by 30 degrees",
        "tables": {
            "run": {"rounds": 300, "batch_size": 64},
            "data": {"name": "digits", "kind": "turned", "angle": 30.0},
            "partition": {"name": "source_target", "source_clients": 1, "target_clients": 1},
            "model": {"name": "mlp", "hidden": [128, 64], "adversary_hidden": [64]},
        },
        "objective": {"name": "dann", "nu": 1.0},
        "lr": 0.02,
        "penalty": 0.5,
    },
    "moons": {
        "title": "two moons: the target is turned by 35 degrees",
        "tables": {
            "run": {"rounds": 150, "batch_size": 64},
            "data": {"name": "moons", "angle": 35.0},
            "partition": {"name": "source_target", "source_clients": 1, "target_clients": 1},
            "model": {"name": "mlp", "hidden": [32, 32], "adversary_hidden": [32]},
        },
        "objective": {"name": "dann", "nu": 0.5},
        "lr": 0.02,
        "penalty": 0.5,
    },
}


def demo_experiments(name: str, seeds: int) -> list[Experiment]:
    """Return experiments with source-only training, FedAvgGDA, FedProxGDA and FedMM, each for seeds 0 .. seeds - 1."""
    if name not in DEMOS:
        raise unknown("demo", name, DEMOS)
    demo = DEMOS[name]
    rates = {"lr_min": demo["lr"], "lr_max": demo["lr"], **_LOCAL}
    penalties = {"penalty_min": demo["penalty"], "penalty_max": demo["penalty"]}
    methods = {
        "source only": ({"name": "source_only"}, {"name": "fedavg_gda", **rates}),
        "FedAvgGDA": (demo["objective"], {"name": "fedavg_gda", **rates}),
        "FedProxGDA": (demo["objective"], {"name": "fedprox_gda", **rates, **penalties}),
        "FedMM": (demo["objective"], {"name": "fedmm", **rates, **penalties}),
    }
    return [
        experiment(
            {
                **demo["tables"],
                "run": {**demo["tables"]["run"], "label": label, "seed": seed, "threads": 1},
                "objective": objective,
                "algorithm": algorithm,
            }
        )
        for seed in range(seeds)
        for label, (objective, algorithm) in methods.items()
    ]
