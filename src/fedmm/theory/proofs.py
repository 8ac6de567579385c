"""Two proofs of the theorem as numbers, the paper's and one that holds, and the smallest penalties that satisfy each.

**The paper's**: the constants A_1 ... A_11, B_1 ... B_3, C_1 ... C_3, D_3.
In each round, and summed over the clients, the proof bounds

    epsilon_t = sum ||psi_i - psi*(omega_i)||^2        apsi_t = sum over i, j of ||psi_i - psi_j||^2
    domega_t  = sum ||omega_i^t - omega_i^{t-1}||^2    aomega_t = sum over i, j of ||omega_i - omega_j||^2

by one another (the paper writes epsilon, psi-bar, omega-tilde and omega-bar):

    apsi_t    <= A1 epsilon_t + A2 domega_t + A3 aomega_t + A4 apsi_{t-1}
    epsilon_t <= A5 apsi_t + A6 apsi_{t-1} + A7 epsilon_{t-1} + A8 domega_t
    apsi_t    <= A9 epsilon_t + A10 epsilon_{t-1} + A4 apsi_{t-1} + A11 domega_t
    epsilon_t + B1 apsi_t <= B2 (epsilon_{t-1} + B1 apsi_{t-1}) + B3 domega_t
    sum of epsilon_t <= C1 sum of domega_t + C2 epsilon_0 + C3 apsi_0

and D_3 is the decrease of Phi per unit of domega_t. ``as_printed`` evaluates what the paper prints, and ``rederived``
the same lemmas with their slips corrected. Neither repairs the proof's use of Danskin's theorem; ``mended`` does.

**One that holds**, through the mean of the clients, to whose psi* Danskin's theorem applies.

The paper differentiates Phi_i(omega) = f_i(omega, psi*(omega)) as if psi* maximised f_i. It maximises the mean f, so
d Phi_i lacks the term (d psi*)' d_psi f_i, which vanishes only in the mean over i. This proof needs Phi alone.

Let eta_3 = 1, and let all clients take part. Let z_i^t be client i's point after round t = 1, 2 ..., zb^t the clients'
mean, z_i^0 = zb^0 = z_0^0, and e_i^t = F_i(z_i^t) + mu (z_i^t - z_0^{t-1}) + dual_i^{t-1} the residual of the local
problem, with mean eb^t. With the signed field F_i, for both sides at once, and because duals start at 0:

    (1)  zb^t = zb^{t-1} - (1/mu) (mean F_i(z_i^t) - eb^t)                                t >= 1
    (2)  z_i^t - z_0^{t-1} = (F_i(z_i^{t-1}) - F_i(z_i^t) + e_i^t - e_i^{t-1}) / mu       t >= 2
    (3)  z_0^t = 2 zb^t - zb^{t-1}                                                        t >= 1

These letters denote sums over t = 1 ... T, from t = 2 for the steps of single clients. Errors are split off by
||a + e||^2 <= h ||a||^2 + k ||e||^2, where h = 1 + slack and k = 1 + 1 / slack:

    x  ||omegab^t - omegab^{t-1}||^2          v  mean ||omega_i^t - omega_i^{t-1}||^2 <= x + 4 w
    y  ||psib^t - psib^{t-1}||^2              s  mean ||psi_i^t - psi_i^{t-1}||^2     <= y + 4 p
    g  mean ||e_{omega,i}^t||^2               j  mean ||e_{psi,i}^t||^2
    w  mean ||omega_i^t - omegab^t||^2        <= w1 + (2h (L11^2 v + L12^2 s) + 4k g) / mu_1^2         by (2)
    p  mean ||psi_i^t - psib^t||^2            <= p1 + (2h (L21^2 v + L22^2 s) + 4k j) / mu_2^2         by (2)
    q  ||mean (d_psi f_i(z_i^t) - d_psi f_i(zb^t))||^2   <= 2 L21^2 w + 2 L22^2 p
    d  ||psib^t - psi*(omegab^t)||^2          <= (mu_2 / B) d0 + 2 (mu_2 kappa / B)^2 x + (2 / B^2) (h q + k j)
    y                                         <= (2h (L22^2 d + q) + k j) / mu_2^2                     by (1)
    r  ||mean d_omega f_i(z_i^t) - dPhi(omegab^t) - eb^t||^2   <= 3h (L11^2 w + L12^2 (p + d)) + k g

For d: by (1), psib^t - (1/mu_2) d_psi f(zb^t) is psib^{t-1} up to q and eb, and by strong concavity its distance from
psi*(omegab^t) is at least (1 + B / mu_2) times that of psib^t. d0, w1, p1 are the values of the first round. Let R be
the bound on r that these inequalities give, linear in x, d0, w1, p1, g and j, and rx its coefficient of x. Phi is
L_Phi-smooth, and by (1) dPhi(omegab^t) is -mu_1 times the mean's step minus the vector in r. Therefore

    Phi(omegab^T) - Phi(omega_0^0)          <= -(mu_1 - L_Phi) x / 2 + R / (2 mu_1)
    sum of ||dPhi(omega_0^t)||^2            <= 2 (mu_1 + L_Phi)^2 x + 2 R                              by (3)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, inf, log
from typing import Literal, NamedTuple

import torch

from fedmm.core.errors import FedmmError
from fedmm.core.validation import one_of, positive
from fedmm.theory.constants import Constants

_CANDIDATES = 64


@dataclass(frozen=True)
class Chain:
    """The chain at one pair of penalties. A[k] is A_k (A[0] is unused). B_bar: the weight of the third inequality."""

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
        """Yield every link that breaks, in order."""
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
        """The first link that breaks; None if the chain holds."""
        return next(self.failures(), None)


def as_printed(c: Constants, mu1: float, mu2: float, l: float) -> Chain:  # noqa: E741 - the paper's symbol
    """Evaluate the appendix as printed: A_1 ... A_4 halved and under permuted names, and C_1 squared in D_3."""
    common = mu2**4 - 16 * c.L22**2 * (mu2 + c.L22) ** 2
    first = (
        16 * c.L22**4 * c.N,
        16 * c.L22**2 * c.L21**2,
        16 * c.L22**2 * mu2**2,
        4 * c.L21**2 * c.N * mu2**2,
    )
    A = _from_four(c, mu1, mu2, *(term / common if common else inf for term in first))
    return _chain(c, mu1, A, 1200 / (c.N * l**2), power=2)


def rederived(c: Constants, mu1: float, mu2: float) -> Chain:
    """Evaluate the same lemmas, derived again; B_bar is chosen to make C_1 smallest."""
    common = mu2**4 - 32 * c.L22**2 * (mu2 + c.L22) ** 2
    first = (
        32 * c.L22**4 * c.N,
        8 * c.N * c.L21**2 * mu2**2,
        32 * c.L22**2 * c.L21**2,
        32 * c.L22**2 * mu2**2,
    )
    A = _from_four(c, mu1, mu2, *(term / common if common else inf for term in first))
    low, high = A[5], 1 / A[9] if A[9] > 0 else inf
    if not 0 < low < high < inf:
        return _chain(c, mu1, A, 2 * low, power=1)
    shares = [(k + 0.5) / _CANDIDATES for k in range(_CANDIDATES)]
    candidates = [_chain(c, mu1, A, exp(log(low) + s * (log(high) - log(low))), power=1) for s in shares]
    return min(candidates, key=lambda chain: chain.C1 if chain.B2 < 1 else inf)


def _from_four(c: Constants, mu1: float, mu2: float, A1: float, A2: float, A3: float, A4: float) -> tuple[float, ...]:
    """Return A_0 (unused) ... A_11, given A_1 ... A_4."""
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
    """Complete the chain. power: the power of C_1 in D_3."""
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


_V, _S, _W, _P, _Q, _Y, _D = range(7)
_X, _D0, _W1, _P1, _G, _J = range(6)


@dataclass(frozen=True)
class Descent:
    """Phi(omegab^T) <= Phi(omega_0^0) - E1 (sum of ||dPhi(omega_0^t)||^2) + E2 d0 + E3 w1 + E4 p1 + E5 g + E6 j.

    omegab^T is the mean of the clients' omega_i^T, and sums are over the rounds t = 1 ... T.

    d0: ||psi_0^0 - psi*(omega_0^0)||^2.
    w1, p1: the mean over the clients of ||omega_i^1 - omegab^1||^2, and the same for psi.
    g, j: the sums of the mean over the clients of e_{omega,i}^2 and e_{psi,i}^2, assumption 3.
    failure: why there is no such bound at these penalties, with E1 ... E6 = 0; None if there is one.
    """

    E1: float
    E2: float
    E3: float
    E4: float
    E5: float
    E6: float
    failure: str | None = None


def mended(c: Constants, mu1: float, mu2: float, slack: float = 0.05) -> Descent:
    """Return the descent of Phi along FedMM; its ``failure`` is set if the penalties are too small for the proof.

    slack: how the proof splits steps from residuals; a smaller one admits smaller penalties but makes E5, E6 larger.
    """
    positive("slack", slack)
    h, k = 1 + slack, 1 + 1 / slack
    loop = torch.zeros(7, 7, dtype=torch.float64)
    given = torch.zeros(7, 6, dtype=torch.float64)
    given[_V, _X], loop[_V, _W] = 1.0, 4.0
    loop[_S, _Y], loop[_S, _P] = 1.0, 4.0
    given[_W, _W1], given[_W, _G] = 1.0, 4 * k / mu1**2
    loop[_W, _V], loop[_W, _S] = 2 * h * (c.L11 / mu1) ** 2, 2 * h * (c.L12 / mu1) ** 2
    given[_P, _P1], given[_P, _J] = 1.0, 4 * k / mu2**2
    loop[_P, _V], loop[_P, _S] = 2 * h * (c.L21 / mu2) ** 2, 2 * h * (c.L22 / mu2) ** 2
    loop[_Q, _W], loop[_Q, _P] = 2 * c.L21**2, 2 * c.L22**2
    given[_D, _D0], given[_D, _X], given[_D, _J] = mu2 / c.B, 2 * (mu2 * c.kappa / c.B) ** 2, 2 * k / c.B**2
    loop[_D, _Q] = 2 * h / c.B**2
    given[_Y, _J] = k / mu2**2
    loop[_Y, _D], loop[_Y, _Q] = 2 * h * (c.L22 / mu2) ** 2, 2 * h / mu2**2
    if float(torch.linalg.eigvals(loop).abs().max()) >= 1:
        return _none("the mean's steps do not bound how far the clients spread: mu_1 or mu_2 is too small")
    bounds = torch.linalg.solve(torch.eye(7, dtype=torch.float64) - loop, given)
    r = 3 * h * (c.L11**2 * bounds[_W] + c.L12**2 * (bounds[_P] + bounds[_D]))
    r[_G] += k
    rx, *rest = r.tolist()
    gain = (mu1 - c.L_Phi - rx / mu1) / 2
    if gain <= 0:
        return _none("the descent of a step does not outweigh its errors: mu_1 is too small")
    E1 = gain / (2 * (mu1 + c.L_Phi) ** 2 + 2 * rx)
    return Descent(E1, *((1 / (2 * mu1) + 2 * E1) * term for term in rest))


def _none(failure: str) -> Descent:
    return Descent(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, failure)


Proof = Literal["rederived", "mended"]
Holds = Callable[[float, float], bool]
_SMALLEST, _LARGEST = 1e-6, 1e24
_PLACES, _ZOOMS = 17, 3


class Penalties(NamedTuple):
    """A pair of penalties."""

    mu1: float
    mu2: float


def least_penalties(constants: Constants, proof: Proof = "mended") -> Penalties:
    """Search, to about 2 %, for the smallest mu_1 for which some mu_2 satisfies a proof; return both.

    proof: ``mended``, the one that holds; or ``rederived``, the paper's chain of lemmas with its slips corrected.
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
    """Return the smallest mu_1 by bisection: a proof that holds for some mu_1 holds for every larger one."""
    low, high = log(_SMALLEST * scale), log(_LARGEST * scale)
    if not holds(exp(high), mu2):
        return inf
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(exp(middle), mu2) else (middle, high)
    return exp(high)
