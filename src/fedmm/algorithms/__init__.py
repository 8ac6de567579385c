"""One federated method per file; ``ALGORITHMS`` is the table that the CLI, the configuration and the tests go by."""

from __future__ import annotations

from fedmm.algorithms.fedavg_gda import FedAvgGDA
from fedmm.algorithms.fedmm import FedMM
from fedmm.algorithms.fedmm_ascent import AscentFedMM
from fedmm.algorithms.fedmm_smoothed import SmoothedFedMM
from fedmm.algorithms.fedprox_gda import FedProxGDA
from fedmm.algorithms.fedsgda import FedSGDA
from fedmm.algorithms.scaffold_gda import ScaffoldGDA
from fedmm.core.algorithm import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        FedSGDA,
        FedAvgGDA,
        FedProxGDA,
        FedMM,
        AscentFedMM,
        SmoothedFedMM,
        ScaffoldGDA,
    )
}

__all__ = [
    "ALGORITHMS",
    "AscentFedMM",
    "FedAvgGDA",
    "FedMM",
    "FedProxGDA",
    "FedSGDA",
    "ScaffoldGDA",
    "SmoothedFedMM",
]
