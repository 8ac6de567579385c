"""The constants A_1 ... A_11, B_1 ... B_3, C_1 ... C_3, D_3 of the paper's proof, as numbers.

The proof bounds, round after round and summed over the clients,

    epsilon_t = sum ||psi_i - psi*(omega_i)||^2        apsi_t = sum over i, j of ||psi_i - psi_j||^2
    domega_t  = sum ||omega_i^t - omega_i^{t-1}||^2    aomega_t = sum over i, j of ||omega_i - omega_j||^2

by one another (the paper writes epsilon, psi-bar, omega-tilde and omega-bar):

    apsi_t    <= A1 epsilon_t + A2 domega_t + A3 aomega_t + A4 apsi_{t-1}
    epsilon_t <= A5 apsi_t + A6 apsi_{t-1} + A7 epsilon_{t-1} + A8 domega_t
    apsi_t    <= A9 epsilon_t + A10 epsilon_{t-1} + A4 apsi_{t-1} + A11 domega_t
    epsilon_t + B1 apsi_t <= B2 (epsilon_{t-1} + B1 apsi_{t-1}) + B3 domega_t
    sum of epsilon_t <= C1 sum of domega_t + C2 epsilon_0 + C3 apsi_0

and D_3 is what one unit of domega_t then takes off Phi. ``as_printed`` evaluates what stands in the paper, and
``rederived`` the same lemmas with their slips mended. Neither cures the proof's use of Danskin's theorem: ``descent``
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, inf, log

from fedmm.theory.constants import Constants

_CANDIDATES = 64


@dataclass(frozen=True)
class Chain:
    """The chain at one pair of penalties; A[k] is A_k, and A[0] is unused. B_bar: the third inequality's weight."""

    A: tuple[float, ...]
    B_bar: float
    B1: float
    B2: float
    B3: float
    C1: float
    C2: float
    C3: float
    D3: float

    def failures(self) -> Iterator[str]:
        """Every link that breaks, from the first."""
        if not all(0 <= a < inf for a in self.A):
            yield f"A_{next(k for k, a in enumerate(self.A) if not 0 <= a < inf)} >= 0"
        if not self.B_bar > self.A[5]:
            yield "B_bar > A_5"
        if not self.B_bar * self.A[9] < 1:
            yield "B_bar A_9 < 1"
        if not self.B2 < 1:
            yield "B_2 < 1"
        if not self.D3 > 0:
            yield "D_3 > 0"

    @property
    def failure(self) -> str | None:
        """The first link that breaks; None where the chain holds."""
        return next(self.failures(), None)


def as_printed(c: Constants, mu1: float, mu2: float, l: float) -> Chain:  # noqa: E741 - the paper's symbol
    """Every formula as it stands in the appendix: A_1 ... A_4 halved and under permuted names, C_1 squared in D_3."""
    common = mu2**4 - 16 * c.L22**2 * (mu2 + c.L22) ** 2
    first = (
        16 * c.L22**4 * c.N,
        16 * c.L22**2 * c.L21**2,
        16 * c.L22**2 * mu2**2,
        4 * c.L21**2 * c.N * mu2**2,
    )
    A = _from_four(c, mu1, mu2, *(each / common if common else inf for each in first))
    return _chain(c, mu1, A, 1200 / (c.N * l**2), power=2)


def rederived(c: Constants, mu1: float, mu2: float) -> Chain:
    """The same lemmas, derived again; B_bar is the one that makes C_1 smallest."""
    common = mu2**4 - 32 * c.L22**2 * (mu2 + c.L22) ** 2
    first = (
        32 * c.L22**4 * c.N,
        8 * c.N * c.L21**2 * mu2**2,
        32 * c.L22**2 * c.L21**2,
        32 * c.L22**2 * mu2**2,
    )
    A = _from_four(c, mu1, mu2, *(each / common if common else inf for each in first))
    low, high = A[5], 1 / A[9] if A[9] > 0 else inf
    if not 0 < low < high < inf:
        return _chain(c, mu1, A, 2 * low, power=1)
    shares = [(k + 0.5) / _CANDIDATES for k in range(_CANDIDATES)]
    candidates = [_chain(c, mu1, A, exp(log(low) + s * (log(high) - log(low))), power=1) for s in shares]
    return min(candidates, key=lambda chain: chain.C1 if chain.B2 < 1 else inf)


def _from_four(c: Constants, mu1: float, mu2: float, A1: float, A2: float, A3: float, A4: float) -> tuple[float, ...]:
    """A_5 ... A_11 from A_1 ... A_4."""
    small = 96 * c.L21**2 * c.L12**2 / (mu2 * mu1**2 * c.B)
    left = 1 - small if small != 1 else -1e-300
    A5 = 8 * (mu2 + c.L22) ** 2 / (c.N * c.B * mu2) / left
    A6 = 8 * mu2 / (c.N * c.B) / left
    A7 = (small + 2 * mu2 / (2 * mu2 + c.B)) / left
    A8 = (96 * c.L21**2 * c.L_Phi**2 / (mu2 * mu1**2 * c.B) + 8 * mu2 * c.kappa**2 / c.B) / left
    A10 = A3 * 12 * c.N * c.L12**2 / mu1**2
    A11 = A2 + A3 * 12 * c.N * c.L_Phi**2 / mu1**2
    return 0.0, A1, A2, A3, A4, A5, A6, A7, A8, A1 + A10, A10, A11


def _chain(c: Constants, mu1: float, A: tuple[float, ...], B_bar: float, power: int) -> Chain:
    """The rest of the chain; power: with which C_1 enters D_3."""
    rest = (1 - B_bar * A[9]) or -1e-300
    over = (B_bar - A[5]) or -1e-300
    B2 = max((B_bar * A[10] + A[7]) / rest, (B_bar * A[4] + A[6]) / over)
    if rest < 0 or over < 0:
        B2 = inf
    B1, B3 = over / rest, (B_bar * A[11] + A[8]) / rest
    decay = 1 - B2
    C1, C2, C3 = (B3 / decay, 1 / decay, B1 / decay) if decay > 0 else (inf, inf, inf)
    gain = (mu1**2 - 2 * c.L_Phi * mu1 - 4 * c.L_Phi**2) / (2 * mu1 * c.N)
    loss = C1**power * (3 * mu1 + 16 * c.L_Phi) * c.L12**2 / (c.N * c.L_Phi * mu1) if c.L12 else 0.0
    return Chain(A, B_bar, B1, B2, B3, C1, C2, C3, gain - loss)
