"""The paper's convergence theorem as a tool: its constants, its range of penalties, and what it speaks of, measured."""

from __future__ import annotations

from fedmm.theory.chain import Chain, as_printed, rederived
from fedmm.theory.constants import Constants
from fedmm.theory.descent import Descent, mended
from fedmm.theory.estimation import Estimate, around, estimate_constants
from fedmm.theory.phi import Phi, PhiAt
from fedmm.theory.residuals import Observation, Observed, Residuals, observe
from fedmm.theory.search import Penalties, least_penalties
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
