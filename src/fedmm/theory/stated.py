"""The range of mu_1 and mu_2 as the paper's appendix states it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from fedmm.algorithms import FedMM
from fedmm.core.errors import require
from fedmm.core.validation import positive
from fedmm.theory.constants import Constants

_ROUNDING = 1e-12
PRINTED_C1 = 164092.0
"""The paper's C_1 <= 164092 l^2 kappa^2, which enters mu_1 squared; 516 * 512 is 264192."""


class Inequality(NamedTuple):
    """One inequality: its text, its smaller side and its larger side."""

    text: str
    smaller: float
    larger: float

    @property
    def holds(self) -> bool:
        """Whether it holds, to rounding."""
        return self.smaller <= self.larger * (1 + _ROUNDING)


@dataclass(frozen=True)
class PenaltyRange:
    """The admissible penalties, from the appendix's "Discussion on the Range of mu_1 and mu_2"::

        max(64 L22 l, 64 L12 l) <= mu_2 <= 64 l^2 B
        mu_1 >= max(L21 L12 l sqrt(24576 / (B mu_2)), L12 sqrt(512 N / 1600), 4 L_Phi,
                    7 164092^2 l^4 kappa^4 L12^2 / L_Phi)

    The paper requires l to be at least max(L22, L12) / B, "large enough", and says no more about it. The range of mu_2
    is empty below that value and a single point at it, and mu_1 grows with l^4, so a larger l gains nothing.
    """

    constants: Constants
    l: float  # noqa: E741 - the paper's symbol

    @property
    def mu2_low(self) -> float:
        """The smallest mu_2."""
        return 64 * self.l * max(self.constants.L22, self.constants.L12)

    @property
    def mu2_high(self) -> float:
        """The largest mu_2."""
        return 64 * self.l**2 * self.constants.B

    def mu1_terms(self, mu2: float | None = None) -> dict[str, float]:
        """Return the four terms of mu_1's lower bound. mu2: by default its own lower bound."""
        c = self.constants
        mu2 = self.mu2_low if mu2 is None else mu2
        return {
            "L21 L12 l sqrt(24576 / (B mu_2))": c.L21 * c.L12 * self.l * sqrt(24576 / (c.B * mu2)),
            "L12 sqrt(512 N / 1600)": c.L12 * sqrt(512 * c.N / 1600),
            "4 L_Phi": 4 * c.L_Phi,
            "7 164092^2 l^4 kappa^4 L12^2 / L_Phi": 7 * PRINTED_C1**2 * self.l**4 * c.kappa**4 * c.L12**2 / c.L_Phi,
        }

    def mu1_low(self, mu2: float | None = None) -> float:
        """Return the smallest mu_1 for a mu_2."""
        return max(self.mu1_terms(mu2).values())

    def inequalities(self, mu1: float, mu2: float) -> Iterator[Inequality]:
        """Yield all inequalities of the range, in the paper's order."""
        c = self.constants
        yield Inequality("64 L22 l <= mu_2", 64 * c.L22 * self.l, mu2)
        yield Inequality("64 L12 l <= mu_2", 64 * c.L12 * self.l, mu2)
        yield Inequality("mu_2 <= 64 l^2 B", mu2, self.mu2_high)
        for text, value in self.mu1_terms(mu2).items():
            yield Inequality(f"{text} <= mu_1", value, mu1)

    def failure(self, mu1: float, mu2: float) -> str | None:
        """Return the first inequality that these penalties violate, with its numbers; None if they are in the range."""
        positive("mu1", mu1)
        positive("mu2", mu2)
        for inequality in self.inequalities(mu1, mu2):
            if not inequality.holds:
                return f"{inequality.text} does not hold: {inequality.smaller:.4g} > {inequality.larger:.4g}"
        return None

    def failure_of(self, algorithm: FedMM) -> str | None:
        """Return what keeps an algorithm outside the theorem: an unmet premise, or the first violated inequality."""
        if algorithm.dual_decay != 1.0:
            return f"eta_3 = 1 does not hold: dual_decay is {algorithm.dual_decay:g}"
        for name in ("penalty_min", "penalty_max"):
            value = getattr(algorithm, name)
            if isinstance(value, Mapping) and len(set(value.values())) > 1:
                return f"{name} is not one number for all parameters"
        return self.failure(_number(algorithm.penalty_min), _number(algorithm.penalty_max))

    def admits(self, algorithm: FedMM) -> bool:
        """Return whether the theorem, as stated, covers an algorithm's penalties."""
        return self.failure_of(algorithm) is None


def penalty_range(constants: Constants, l: float | None = None) -> PenaltyRange:  # noqa: E741 - the paper's symbol
    """Return the paper's range for a problem. l: by default the smallest that leaves the range non-empty."""
    least = max(constants.L22, constants.L12) / constants.B
    if l is None:
        return PenaltyRange(constants, least)
    positive("l", l)
    require(
        l >= least * (1 - _ROUNDING),
        f"l must be at least max(L22, L12) / B = {least:g}, or no mu_2 is left; not {l:g}",
    )
    return PenaltyRange(constants, l)


def _number(value: float | Mapping[str, float]) -> float:
    return next(iter(value.values())) if isinstance(value, Mapping) else value
