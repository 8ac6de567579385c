"""A proof of the theorem that holds: through the mean of the clients, of whose psi* Danskin's theorem speaks.

The paper differentiates Phi_i(omega) = f_i(omega, psi*(omega)) as if psi* were the maximum of f_i. It is that of the
mean f: d Phi_i lacks the term (d psi*)' d_psi f_i, which vanishes only in the mean over i. Here Phi alone is needed.

eta_3 = 1, and all clients take part. Let z_i^t be client i's point after round t = 1, 2 ..., zb^t the clients' mean,
z_i^0 = zb^0 = z_0^0, and e_i^t = F_i(z_i^t) + mu (z_i^t - z_0^{t-1}) + dual_i^{t-1} what is left of the local problem,
with mean eb^t. In the signed field F_i, for both sides at once, and as duals start at 0:

    (1)  zb^t = zb^{t-1} - (1/mu) (mean F_i(z_i^t) - eb^t)                                t >= 1
    (2)  z_i^t - z_0^{t-1} = (F_i(z_i^{t-1}) - F_i(z_i^t) + e_i^t - e_i^{t-1}) / mu       t >= 2
    (3)  z_0^t = 2 zb^t - zb^{t-1}                                                        t >= 1

Sums over t = 1 ... T are written with these letters, the steps of single clients from t = 2. Errors are split off with
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

d: by (1) psib^t - (1/mu_2) d_psi f(zb^t) is psib^{t-1} up to q and eb, and by strong concavity its distance from
psi*(omegab^t) is at least (1 + B / mu_2) times that of psib^t. d0, w1, p1 are the first round's values. Let R be the
bound on r, linear in x, d0, w1, p1, g and j, that these inequalities give, and rx its share of x. Phi is L_Phi-smooth,
and by (1) dPhi(omegab^t) is -mu_1 times the mean's step less the vector in r. Therefore

    Phi(omegab^T) - Phi(omega_0^0)          <= -(mu_1 - L_Phi) x / 2 + R / (2 mu_1)
    sum of ||dPhi(omega_0^t)||^2            <= 2 (mu_1 + L_Phi)^2 x + 2 R                              by (3)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedmm.core.validation import positive
from fedmm.theory.constants import Constants

_V, _S, _W, _P, _Q, _Y, _D = range(7)
_X, _D0, _W1, _P1, _G, _J = range(6)


@dataclass(frozen=True)
class Descent:
    """Phi(omegab^T) <= Phi(omega_0^0) - E1 (sum of ||dPhi(omega_0^t)||^2) + E2 d0 + E3 w1 + E4 p1 + E5 g + E6 j.

    omegab^T is the mean of the clients' omega_i^T, and sums are over the rounds t = 1 ... T.

    d0: ||psi_0^0 - psi*(omega_0^0)||^2.
    w1, p1: the mean over the clients of ||omega_i^1 - omegab^1||^2, and of psi's.
    g, j: the sums of the mean over the clients of e_{omega,i}^2 and e_{psi,i}^2, assumption 3.
    failure: why there is no such bound at these penalties; then E1 ... E6 are 0. None where there is one.
    """

    E1: float
    E2: float
    E3: float
    E4: float
    E5: float
    E6: float
    failure: str | None = None


def mended(c: Constants, mu1: float, mu2: float, slack: float = 0.05) -> Descent:
    """The descent of Phi along FedMM, where penalties are large enough for the proof.

    slack: how the proof shares between steps and residuals; with less, smaller penalties do, and E5 and E6 are larger.
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
        return _none("a step does not pay for the errors it makes: mu_1 is too small")
    E1 = gain / (2 * (mu1 + c.L_Phi) ** 2 + 2 * rx)
    return Descent(E1, *((1 / (2 * mu1) + 2 * E1) * each for each in rest))


def _none(failure: str) -> Descent:
    return Descent(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, failure)
