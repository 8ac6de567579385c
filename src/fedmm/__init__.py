"""Federated minimax optimisation and adversarial domain adaptation.

``fedmm.solve`` runs a federated algorithm on any minimax problem; ``fedmm.adapt`` trains a network over clients that
hold labelled source data, unlabelled target data, or both.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from fedmm._version import __version__ as __version__

if _TYPE_CHECKING:
    from fedmm.algorithms import ALGORITHMS, FedAvgGDA, FedMM, FedProxGDA, FedSGDA, ScaffoldGDA, SmoothedFedMM
    from fedmm.core.aggregation import CoordinateMedian, GeometricMedian, TrimmedMean
    from fedmm.core.errors import Diverged, FedmmError
    from fedmm.core.imports import allow_import
    from fedmm.core.schedules import (
        SCHEDULES,
        Constant,
        CosineDecay,
        DannDecay,
        DannWarmup,
        InverseDecay,
        TllibWarmup,
    )
    from fedmm.core.terms import Terms
    from fedmm.core.transmission import ClippedUpdate, GaussianUpdate
    from fedmm.data.views import CropAndFlip
    from fedmm.experiment.adapt import Adapted, adapt
    from fedmm.experiment.adaptation import Client
    from fedmm.experiment.choosing import Stopping
    from fedmm.experiment.guard import Guard
    from fedmm.experiment.predictor import Predictor, load_model
    from fedmm.experiment.presets import Preset, preset
    from fedmm.experiment.solve import Solution, solve
    from fedmm.models.network import Network
    from fedmm.objectives import CDAN, DANN, MDD, OBJECTIVES, SourceOnly

__all__ = [
    "ALGORITHMS",
    "CDAN",
    "DANN",
    "MDD",
    "OBJECTIVES",
    "SCHEDULES",
    "Adapted",
    "Client",
    "ClippedUpdate",
    "Constant",
    "CoordinateMedian",
    "CosineDecay",
    "CropAndFlip",
    "DannDecay",
    "DannWarmup",
    "Diverged",
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
    "Stopping",
    "Terms",
    "TllibWarmup",
    "TrimmedMean",
    "adapt",
    "allow_import",
    "load_model",
    "preset",
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
    "fedmm.core.terms": ("Terms",),
    "fedmm.core.transmission": ("ClippedUpdate", "GaussianUpdate"),
    "fedmm.data.views": ("CropAndFlip",),
    "fedmm.experiment.adapt": ("Adapted", "adapt"),
    "fedmm.experiment.adaptation": ("Client",),
    "fedmm.experiment.choosing": ("Stopping",),
    "fedmm.experiment.guard": ("Guard",),
    "fedmm.experiment.predictor": ("Predictor", "load_model"),
    "fedmm.experiment.presets": ("Preset", "preset"),
    "fedmm.experiment.solve": ("Solution", "solve"),
    "fedmm.models.network": ("Network",),
    "fedmm.objectives": ("CDAN", "DANN", "MDD", "OBJECTIVES", "SourceOnly"),
}
"""Where each name is defined: it is imported when it is first asked for, so that what needs no torch starts at once."""


if not _TYPE_CHECKING:  # a type checker would take it for leave to ask for any name

    def __getattr__(name: str) -> object:
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
