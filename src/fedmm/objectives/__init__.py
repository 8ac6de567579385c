"""Adversarial losses, one per file; ``OBJECTIVES`` is the table that the CLI, the configuration and the tests use."""

from __future__ import annotations

from fedmm.core.objective import Objective
from fedmm.objectives.auc import AUC
from fedmm.objectives.cdan import CDAN
from fedmm.objectives.dann import DANN
from fedmm.objectives.mdd import MDD
from fedmm.objectives.source_only import SourceOnly

OBJECTIVES: dict[str, type[Objective]] = {
    objective.name: objective
    for objective in (
        DANN,
        CDAN,
        MDD,
        AUC,
        SourceOnly,
    )
}

__all__ = [
    "AUC",
    "CDAN",
    "DANN",
    "MDD",
    "OBJECTIVES",
    "SourceOnly",
]
