"""The paper's hyperparameters, from its text (``paper``) and from its published program (``authors``).

A preset fills in what an experiment leaves out. Where the text is silent the program's value is used, and vice versa.
``scratch`` is MNIST-M and similar data, ``pretrained`` is Office-31 with a pre-trained backbone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedmm.algorithms import ALGORITHMS
from fedmm.config.dataclass_io import Table, choose
from fedmm.core.algorithm import Algorithm
from fedmm.core.errors import unknown
from fedmm.core.objective import Objective
from fedmm.core.options import PRESETS
from fedmm.models import MODELS, Model
from fedmm.objectives import OBJECTIVES

_PRETRAINED_DATA = ("office31",)
_NU = {
    "scratch": {"dann": 1.0, "cdan": 1.0, "mdd": 0.5},
    "pretrained": {"dann": 0.25, "cdan": 0.25, "mdd": 0.1},
}
_PAPER_DECAY = {"dann": 1 / 1.0005, "cdan": 1 / 1.0002, "mdd": 1 / 1.0001}
_AUTHORS_DECAY = {"dann": 1.05 ** (-1 / 100), "cdan": 1.02 ** (-1 / 100), "mdd": 1.01 ** (-1 / 100)}
_PAPER_PRETRAINED_LR_MAX = {"dann": 0.04, "cdan": 0.1, "mdd": 0.1}
_AUTHORS_ROUNDS = {"dann": 15_000, "cdan": 30_000, "mdd": 50_000}
_AUTHORS_MDD_HEADS = {"task_hidden": [200, 200], "head_dropout": 0.5}
_MOBILENET = {
    "name": "mobilenet_v2",
    "weights": "imagenet",
    "centre": "none",
    "bottleneck": 1024,
    "task_hidden": [1024],
    "adversary_hidden": [1024],
}


@dataclass(frozen=True)
class Preset:
    """A preset's hyperparameters as objects: pass them to :func:`fedmm.adapt`, or ``replace`` some of them first."""

    algorithm: Algorithm
    objective: Objective
    model: Model
    batch_size: int


def preset(name: str, *, objective: str = "dann", algorithm: str = "fedmm", data: str = "mnist_m") -> Preset:
    """Build the preset ``paper`` or ``authors`` for an objective, an algorithm and a data set, each given by name."""
    tables = preset_tables(name, objective=objective, algorithm=algorithm, data=data)
    return Preset(
        choose(ALGORITHMS, tables["algorithm"], "algorithm"),
        choose(OBJECTIVES, tables["objective"], "objective"),
        choose(MODELS, tables["model"], "model"),
        tables["run"]["batch_size"],
    )


def preset_tables(name: str, *, objective: str, algorithm: str, data: str) -> dict[str, Table]:
    """Return the preset's tables ``run``, ``model``, ``objective`` and ``algorithm``, with options that these have."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    start = "pretrained" if data in _PRETRAINED_DATA else "scratch"
    adversarial = objective if objective in _NU[start] else "dann"
    tables = (_paper if name == "paper" else _authors)(start, adversarial)
    options = ALGORITHMS[algorithm].__dataclass_fields__
    tables["algorithm"] = {key: value for key, value in tables["algorithm"].items() if key in options}
    if objective not in _NU[start]:
        tables["objective"] = {}
    tables["objective"]["name"] = objective
    tables["algorithm"]["name"] = algorithm
    return tables


def _paper(start: str, objective: str) -> dict[str, Any]:
    pretrained = start == "pretrained"
    return {
        "run": {"batch_size": 64},
        "model": dict(_MOBILENET) if pretrained else {"name": "paper_cnn", "centre": "train_mean"},
        "objective": {"nu": _NU[start][objective]},
        "algorithm": {
            "lr_min": {"features.backbone": 0.0005, "*": 0.01} if pretrained else 0.01,
            "lr_max": _PAPER_PRETRAINED_LR_MAX[objective] if pretrained else 0.01,
            "penalty_min": 1.0,
            "penalty_max": 1.0,
            "dual_decay": _PAPER_DECAY[objective],
            "local_steps": 20,
        },
    }


def _authors(start: str, objective: str) -> dict[str, Any]:
    nu = _NU[start][objective]
    if start == "pretrained":
        run: Table = {"batch_size": 64}
        model: Table = {**_MOBILENET, "bottleneck_dropout": 0.5, "head_dropout": 0.5}
        scale = {"features.backbone": 0.05, "adversary": 1 / (nu + 0.01), "*": 1.0}
    else:
        run = {"batch_size": 64, "rounds": _AUTHORS_ROUNDS[objective]}
        heads = _AUTHORS_MDD_HEADS if objective == "mdd" else {}
        model = {"name": "paper_cnn", "centre": "batch_mean", "initialisation": "truncated_normal", **heads}
        scale = {"features": 1.0, "task_head": 1.0, "adversary": 1 / nu}
    return {
        "run": run,
        "model": model,
        "objective": {"nu": nu, "gradient_scale": scale},
        "algorithm": {
            "lr_min": 0.01,
            "lr_max": 0.01,
            "penalty_min": 2.0,
            "penalty_max": 2.0,
            "dual_decay": _AUTHORS_DECAY[objective],
            "local_steps": 20,
        },
    }
