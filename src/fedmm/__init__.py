"""Federated minimax optimisation and adversarial domain adaptation.

``fedmm.solve`` runs a federated algorithm on any minimax problem; ``fedmm.adapt`` trains a network over clients that
hold labelled source data, unlabelled target data, or both.
"""

from __future__ import annotations

from fedmm.algorithms import ALGORITHMS, FedAvgGDA, FedMM, FedProxGDA, FedSGDA, ScaffoldGDA, SmoothedFedMM
from fedmm.core.aggregation import CoordinateMedian, GeometricMedian, TrimmedMean
from fedmm.core.errors import Diverged, FedmmError
from fedmm.core.terms import Terms
from fedmm.core.transmission import ClippedUpdate
from fedmm.data.views import CropAndFlip
from fedmm.experiment.adapt import Adapted, adapt
from fedmm.experiment.adaptation import Client
from fedmm.experiment.predictor import Predictor, load_model
from fedmm.experiment.presets import Preset, preset
from fedmm.experiment.solve import Solution, solve
from fedmm.models.network import Network
from fedmm.objectives import CDAN, DANN, MDD, OBJECTIVES, SourceOnly

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "CDAN",
    "DANN",
    "MDD",
    "OBJECTIVES",
    "Adapted",
    "Client",
    "ClippedUpdate",
    "CoordinateMedian",
    "CropAndFlip",
    "Diverged",
    "FedAvgGDA",
    "FedMM",
    "FedProxGDA",
    "FedSGDA",
    "FedmmError",
    "GeometricMedian",
    "Network",
    "Predictor",
    "Preset",
    "ScaffoldGDA",
    "SmoothedFedMM",
    "Solution",
    "SourceOnly",
    "Terms",
    "TrimmedMean",
    "adapt",
    "load_model",
    "preset",
    "solve",
]
