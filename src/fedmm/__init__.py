"""Federated minimax optimisation and adversarial domain adaptation.

``fedmm.solve`` runs a federated algorithm on any minimax problem; ``fedmm.adapt`` trains a network over clients that
hold labelled source data, unlabelled target data, or both.
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module
from warnings import warn as _warn

from fedmm._version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from fedmm.algorithms import *  # noqa: F403 - all that its __all__ lists
    from fedmm.config.presets import Preset as Preset
    from fedmm.config.presets import preset as preset
    from fedmm.config.schema import Experiment as Experiment
    from fedmm.config.schema import experiment as experiment
    from fedmm.core.aggregation import CoordinateMedian as CoordinateMedian
    from fedmm.core.aggregation import GeometricMedian as GeometricMedian
    from fedmm.core.aggregation import TrimmedMean as TrimmedMean
    from fedmm.core.algorithm import Aggregated as Aggregated
    from fedmm.core.algorithm import Algorithm as Algorithm
    from fedmm.core.algorithm import Coefficients as Coefficients
    from fedmm.core.algorithm import LocalSteps as LocalSteps
    from fedmm.core.algorithm import State as State
    from fedmm.core.errors import Diverged as Diverged
    from fedmm.core.errors import FedmmError as FedmmError
    from fedmm.core.federation import Terms as Terms
    from fedmm.core.imports import allow_import as allow_import
    from fedmm.core.layout import Layout as Layout
    from fedmm.core.layout import PerGroup as PerGroup
    from fedmm.core.mechanisms import ClippedUpdate as ClippedUpdate
    from fedmm.core.mechanisms import GaussianUpdate as GaussianUpdate
    from fedmm.core.objective import SOURCE as SOURCE
    from fedmm.core.objective import TARGET as TARGET
    from fedmm.core.objective import AdversaryShape as AdversaryShape
    from fedmm.core.objective import Objective as Objective
    from fedmm.core.objective import Outputs as Outputs
    from fedmm.core.options import TrainOptions as TrainOptions
    from fedmm.core.problem import FederatedProblem as FederatedProblem
    from fedmm.core.projections import Ball as Ball
    from fedmm.core.projections import Box as Box
    from fedmm.core.projections import HalfLine as HalfLine
    from fedmm.core.projections import Simplex as Simplex
    from fedmm.core.schedules import SCHEDULES as SCHEDULES
    from fedmm.core.schedules import Constant as Constant
    from fedmm.core.schedules import CosineDecay as CosineDecay
    from fedmm.core.schedules import DannDecay as DannDecay
    from fedmm.core.schedules import DannWarmup as DannWarmup
    from fedmm.core.schedules import InverseDecay as InverseDecay
    from fedmm.core.schedules import TllibWarmup as TllibWarmup
    from fedmm.core.target_losses import TARGET_LOSSES as TARGET_LOSSES
    from fedmm.core.target_losses import BatchNuclearNorm as BatchNuclearNorm
    from fedmm.core.target_losses import InformationMaximisation as InformationMaximisation
    from fedmm.core.target_losses import MinimumClassConfusion as MinimumClassConfusion
    from fedmm.core.target_losses import TargetLoss as TargetLoss
    from fedmm.data import DATASETS as DATASETS
    from fedmm.data.transforms import CropAndFlip as CropAndFlip
    from fedmm.engines.in_process import InProcess as InProcess
    from fedmm.inference.load_run import FinishedRun as FinishedRun
    from fedmm.inference.load_run import open_run as open_run
    from fedmm.models.network import Network as Network
    from fedmm.objectives import *  # noqa: F403
    from fedmm.remote.messaging import Messaging as Messaging
    from fedmm.runs.run import run_experiment as run_experiment
    from fedmm.runs.tuning.tune import Tuning as Tuning
    from fedmm.runs.tuning.tune import tune as tune
    from fedmm.training.adapt import adapt as adapt
    from fedmm.training.adaptation import Adapted as Adapted
    from fedmm.training.callbacks import Callback as Callback
    from fedmm.training.callbacks import EarlyStopping as EarlyStopping
    from fedmm.training.clients import Client as Client
    from fedmm.training.guard import Guard as Guard
    from fedmm.training.history import History as History
    from fedmm.training.predictor import Predictor as Predictor
    from fedmm.training.predictor import load_model as load_model
    from fedmm.training.solve import FunctionClient as FunctionClient
    from fedmm.training.solve import Solution as Solution
    from fedmm.training.solve import solve as solve

_TABLES = ("fedmm.algorithms", "fedmm.objectives")
"""Packages whose whole ``__all__`` is public here: every class in their tables can be imported from ``fedmm``."""

_HOME = {
    "fedmm.config.presets": ("Preset", "preset"),
    "fedmm.config.schema": ("Experiment", "experiment"),
    "fedmm.core.aggregation": ("CoordinateMedian", "GeometricMedian", "TrimmedMean"),
    "fedmm.core.algorithm": ("Aggregated", "Algorithm", "Coefficients", "LocalSteps", "State"),
    "fedmm.core.errors": ("Diverged", "FedmmError"),
    "fedmm.core.federation": ("Terms",),
    "fedmm.core.imports": ("allow_import",),
    "fedmm.core.layout": ("Layout", "PerGroup"),
    "fedmm.core.mechanisms": ("ClippedUpdate", "GaussianUpdate"),
    "fedmm.core.objective": ("SOURCE", "TARGET", "AdversaryShape", "Objective", "Outputs"),
    "fedmm.core.options": ("TrainOptions",),
    "fedmm.core.problem": ("FederatedProblem",),
    "fedmm.core.projections": ("Ball", "Box", "HalfLine", "Simplex"),
    "fedmm.core.schedules": (
        "SCHEDULES",
        "Constant",
        "CosineDecay",
        "DannDecay",
        "DannWarmup",
        "InverseDecay",
        "TllibWarmup",
    ),
    "fedmm.core.target_losses": (
        "TARGET_LOSSES",
        "BatchNuclearNorm",
        "InformationMaximisation",
        "MinimumClassConfusion",
        "TargetLoss",
    ),
    "fedmm.data": ("DATASETS",),
    "fedmm.data.transforms": ("CropAndFlip",),
    "fedmm.engines.in_process": ("InProcess",),
    "fedmm.inference.load_run": ("FinishedRun", "open_run"),
    "fedmm.models.network": ("Network",),
    "fedmm.remote.messaging": ("Messaging",),
    "fedmm.runs.run": ("run_experiment",),
    "fedmm.runs.tuning.tune": ("Tuning", "tune"),
    "fedmm.training.adapt": ("adapt",),
    "fedmm.training.adaptation": ("Adapted",),
    "fedmm.training.callbacks": ("Callback", "EarlyStopping"),
    "fedmm.training.clients": ("Client",),
    "fedmm.training.guard": ("Guard",),
    "fedmm.training.history": ("History",),
    "fedmm.training.predictor": ("Predictor", "load_model"),
    "fedmm.training.solve": ("FunctionClient", "Solution", "solve"),
}
"""Where every other name is defined. Modules are imported on first use, so that what needs no torch starts fast."""

_RENAMED = {"Stopping": "EarlyStopping"}
"""Old names that still work, with a deprecation warning, and their new names."""


def _public_names() -> list[str]:
    """Return all public names: constants in capitals, then other classes, then functions."""
    names = {name for names in _HOME.values() for name in names}
    names.update(name for room in _TABLES for name in _import_module(room).__all__)
    return sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))


if not _typing.TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name in _RENAMED:
            _warn(f"fedmm.{name} is now fedmm.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
            return __getattr__(_RENAMED[name])
        if name == "__all__":
            return _public_names()
        for home, names in _HOME.items():
            if name in names:
                value = globals()[name] = getattr(_import_module(home), name)
                return value
        try:
            return _import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as problem:
            if problem.name != f"{__name__}.{name}":
                raise
        for room in _TABLES if not name.startswith("_") else ():
            if name in _import_module(room).__all__:
                value = globals()[name] = getattr(_import_module(room), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_names()})
