"""The paper's convergence theorem as a tool: its constants, its range of penalties, and its quantities along a run."""

from __future__ import annotations

from fedmm.theory.constants import Constants, Estimate, around, estimate_constants
from fedmm.theory.proofs import Chain, Descent, Penalties, as_printed, least_penalties, mended, rederived
from fedmm.theory.residuals import Observation, Observed, Phi, PhiAt, Residuals, observe
from fedmm.theory.stated import PenaltyRange, penalty_range

__all__ = [
    "Chain",
    "Constants",
    "Descent",
    "Estimate",
    "Observation",
    "Observed",
    "Penalties",
    "PenaltyRange",
    "Phi",
    "PhiAt",
    "Residuals",
    "around",
    "as_printed",
    "estimate_constants",
    "least_penalties",
    "mended",
    "observe",
    "penalty_range",
    "rederived",
]
