"""Federated algorithms; ``ALGORITHMS`` is the table that the CLI, the configuration and the tests use."""

from __future__ import annotations

from fedmm.algorithms.coda import CODASCA, CODAPlus
from fedmm.algorithms.extragradient import Extragradient
from fedmm.algorithms.fedavg_gda import FedAvgGDA
from fedmm.algorithms.fedgda_gt import FedGDAGT
from fedmm.algorithms.fedmm import FedMM
from fedmm.algorithms.fedmm_variants.adaptive import AdaptiveFedMM
from fedmm.algorithms.fedmm_variants.ascent import AscentFedMM
from fedmm.algorithms.fedmm_variants.optimistic import OptimisticFedMM
from fedmm.algorithms.fedmm_variants.restrained import RestrainedFedMM
from fedmm.algorithms.fedmm_variants.smoothed import SmoothedFedMM
from fedmm.algorithms.fedprox_gda import FedProxGDA
from fedmm.algorithms.fedsgda import FedSGDA
from fedmm.algorithms.fedsgda_m import FedSGDAM
from fedmm.algorithms.fess_gda import FESSGDA
from fedmm.algorithms.momentum_gda import MomentumGDA
from fedmm.algorithms.proximal_point import ProximalPoint
from fedmm.algorithms.proxskip_sgda import ProxSkipSGDA
from fedmm.algorithms.scaffold_gda import ScaffoldGDA
from fedmm.algorithms.server_optimizers import (
    NoOptimizer,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerYogi,
)
from fedmm.algorithms.sgda_plus import SGDAPlus
from fedmm.algorithms.site_weights.afl import AFL
from fedmm.algorithms.site_weights.drfa import DRFA
from fedmm.algorithms.site_weights.fedmm_agnostic import AgnosticFedMM
from fedmm.algorithms.site_weights.q_ffl import QFFL
from fedmm.core.algorithm import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        FedSGDA,
        FedAvgGDA,
        FedProxGDA,
        FedMM,
        RestrainedFedMM,
        AscentFedMM,
        AdaptiveFedMM,
        SmoothedFedMM,
        OptimisticFedMM,
        ScaffoldGDA,
        FedGDAGT,
        ProxSkipSGDA,
        Extragradient,
        ProximalPoint,
        SGDAPlus,
        MomentumGDA,
        FedSGDAM,
        FESSGDA,
        CODAPlus,
        CODASCA,
        AFL,
        AgnosticFedMM,
        DRFA,
        QFFL,
    )
}

__all__ = [
    "AFL",
    "ALGORITHMS",
    "AdaptiveFedMM",
    "AgnosticFedMM",
    "AscentFedMM",
    "CODAPlus",
    "CODASCA",
    "DRFA",
    "Extragradient",
    "FESSGDA",
    "FedAvgGDA",
    "FedGDAGT",
    "FedMM",
    "FedProxGDA",
    "FedSGDA",
    "FedSGDAM",
    "MomentumGDA",
    "NoOptimizer",
    "OptimisticFedMM",
    "ProxSkipSGDA",
    "ProximalPoint",
    "QFFL",
    "RestrainedFedMM",
    "SGDAPlus",
    "ScaffoldGDA",
    "ServerAdam",
    "ServerMomentum",
    "ServerOptimizer",
    "ServerYogi",
    "SmoothedFedMM",
]
