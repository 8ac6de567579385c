"""Federated minimax optimisation and adversarial domain adaptation.

``fedmm.solve`` runs a federated algorithm on any minimax problem; ``fedmm.adapt`` trains a network over clients that
hold labelled source data, unlabelled target data, or both.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from warnings import warn as _warn

from fedmm._version import __version__ as __version__

if _TYPE_CHECKING:
    from fedmm.algorithms import ALGORITHMS, FedAvgGDA, FedMM, FedProxGDA, FedSGDA, ScaffoldGDA, SmoothedFedMM
    from fedmm.config.presets import Preset, preset
    from fedmm.config.schema import Experiment, experiment
    from fedmm.core.aggregation import CoordinateMedian, GeometricMedian, TrimmedMean
    from fedmm.core.errors import Diverged, FedmmError
    from fedmm.core.federation import Terms
    from fedmm.core.imports import allow_import
    from fedmm.core.mechanisms import ClippedUpdate, GaussianUpdate
    from fedmm.core.options import TrainOptions
    from fedmm.core.schedules import (
        SCHEDULES,
        Constant,
        CosineDecay,
        DannDecay,
        DannWarmup,
        InverseDecay,
        TllibWarmup,
    )
    from fedmm.data.transforms import CropAndFlip
    from fedmm.inference.load_run import open_run
    from fedmm.models.network import Network
    from fedmm.objectives import CDAN, DANN, MDD, OBJECTIVES, SourceOnly
    from fedmm.runs.run import run_experiment
    from fedmm.training.adapt import adapt
    from fedmm.training.adaptation import Adapted
    from fedmm.training.callbacks import Callback, EarlyStopping
    from fedmm.training.guard import Guard
    from fedmm.training.predictor import Predictor, load_model
    from fedmm.training.problem import Client
    from fedmm.training.solve import Solution, solve

__all__ = [
    "ALGORITHMS",
    "CDAN",
    "DANN",
    "MDD",
    "OBJECTIVES",
    "SCHEDULES",
    "Adapted",
    "Callback",
    "Client",
    "ClippedUpdate",
    "Constant",
    "CoordinateMedian",
    "CosineDecay",
    "CropAndFlip",
    "DannDecay",
    "DannWarmup",
    "Diverged",
    "EarlyStopping",
    "Experiment",
    "FedAvgGDA",
    "FedMM",
    "FedProxGDA",
    "FedSGDA",
    "FedmmError",
    "GaussianUpdate",
    "GeometricMedian",
    "Guard",
    "InverseDecay",
    "Network",
    "Predictor",
    "Preset",
    "ScaffoldGDA",
    "SmoothedFedMM",
    "Solution",
    "SourceOnly",
    "Terms",
    "TllibWarmup",
    "TrainOptions",
    "TrimmedMean",
    "adapt",
    "allow_import",
    "experiment",
    "load_model",
    "open_run",
    "preset",
    "run_experiment",
    "solve",
]

_HOME = {
    "fedmm.algorithms": ("ALGORITHMS", "FedAvgGDA", "FedMM", "FedProxGDA", "FedSGDA", "ScaffoldGDA", "SmoothedFedMM"),
    "fedmm.core.aggregation": ("CoordinateMedian", "GeometricMedian", "TrimmedMean"),
    "fedmm.core.errors": ("Diverged", "FedmmError"),
    "fedmm.core.imports": ("allow_import",),
    "fedmm.core.schedules": (
        "SCHEDULES",
        "Constant",
        "CosineDecay",
        "DannDecay",
        "DannWarmup",
        "InverseDecay",
        "TllibWarmup",
    ),
    "fedmm.core.federation": ("Terms",),
    "fedmm.core.mechanisms": ("ClippedUpdate", "GaussianUpdate"),
    "fedmm.core.options": ("TrainOptions",),
    "fedmm.data.transforms": ("CropAndFlip",),
    "fedmm.training.adapt": ("adapt",),
    "fedmm.training.adaptation": ("Adapted",),
    "fedmm.training.problem": ("Client",),
    "fedmm.training.callbacks": ("Callback", "EarlyStopping"),
    "fedmm.training.guard": ("Guard",),
    "fedmm.training.predictor": ("Predictor", "load_model"),
    "fedmm.config.presets": ("Preset", "preset"),
    "fedmm.config.schema": ("Experiment", "experiment"),
    "fedmm.inference.load_run": ("open_run",),
    "fedmm.runs.run": ("run_experiment",),
    "fedmm.training.solve": ("Solution", "solve"),
    "fedmm.models.network": ("Network",),
    "fedmm.objectives": ("CDAN", "DANN", "MDD", "OBJECTIVES", "SourceOnly"),
}
"""Where each name is defined: it is imported when it is first asked for, so that what needs no torch starts at once."""

_RENAMED = {"Stopping": "EarlyStopping"}
"""Names that still work, with a warning, and what they are called now."""


if not _TYPE_CHECKING:  # a type checker would take it for leave to ask for any name

    def __getattr__(name: str) -> object:
        if name in _RENAMED:
            _warn(f"fedmm.{name} is now fedmm.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
            return __getattr__(_RENAMED[name])
        for home, names in _HOME.items():
            if name in names:
                value = globals()[name] = getattr(_import_module(home), name)
                return value
        try:
            return _import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as problem:
            if problem.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
