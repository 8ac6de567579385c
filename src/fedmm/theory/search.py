"""The smallest penalties at which a proof goes through."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log
from typing import Literal, NamedTuple

from fedmm.core.errors import FedmmError
from fedmm.core.validation import one_of
from fedmm.theory.chain import rederived
from fedmm.theory.constants import Constants
from fedmm.theory.descent import mended

Proof = Literal["rederived", "mended"]
Holds = Callable[[float, float], bool]
_SMALLEST, _LARGEST = 1e-6, 1e24
_PLACES, _ZOOMS = 17, 3


class Penalties(NamedTuple):
    """A pair of penalties."""

    mu1: float
    mu2: float


def least_penalties(constants: Constants, proof: Proof = "mended") -> Penalties:
    """The smallest mu_1 for which some mu_2 satisfies a proof, and that mu_2; found by search, to about 2 %.

    proof: ``mended``, the one that holds; or ``rederived``, the paper's own chain of lemmas with its slips mended.
    """
    one_of("proof", proof, ("rederived", "mended"))

    def holds(mu1: float, mu2: float) -> bool:
        found = mended(constants, mu1, mu2) if proof == "mended" else rederived(constants, mu1, mu2)
        return found.failure is None

    low, high = log(constants.B), log(1e6 * constants.L22 * (constants.L22 / constants.B))
    best = Penalties(inf, inf)
    for _ in range(_ZOOMS):
        step = (high - low) / (_PLACES - 1)
        for place in range(_PLACES):
            mu2 = exp(low + place * step)
            best = min(best, Penalties(_least_mu1(holds, mu2, constants.L_Phi), mu2))
        if best.mu1 == inf:
            break
        low, high = log(best.mu2) - step, log(best.mu2) + step
    if best.mu1 == inf:
        raise FedmmError(f"no penalties up to {_LARGEST:g} times L_Phi satisfy the {proof} proof")
    return best


def _least_mu1(holds: Holds, mu2: float, scale: float) -> float:
    """By bisection: a proof that holds for some mu_1 holds for every larger one."""
    low, high = log(_SMALLEST * scale), log(_LARGEST * scale)
    if not holds(exp(high), mu2):
        return inf
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(exp(middle), mu2) else (middle, high)
    return exp(high)
