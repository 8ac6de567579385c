"""The constants of the paper's assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from fedmm.core.errors import require
from fedmm.core.validation import at_least, not_negative, positive


@dataclass(frozen=True)
class Constants:
    """What the convergence theorem knows of a problem; every bound holds for every client f_i.

    ========  ======================================================================================
    field     meaning
    ========  ======================================================================================
    L11, L12  d_omega f_i is L11-Lipschitz in omega, and L12-Lipschitz in psi
    L21, L22  d_psi f_i is L21-Lipschitz in omega, and L22-Lipschitz in psi
    B         f_i is B-strongly concave in psi
    kappa     psi*(omega) = argmax of f(omega, .) is kappa-Lipschitz; kappa <= L21 / B
    L_Phi     the gradient of Phi(omega) = f(omega, psi*(omega)) is L_Phi-Lipschitz; L_Phi <= L11 + L12 kappa
    N         how many clients
    ========  ======================================================================================

    L12 = L21 where f_i is twice continuously differentiable.
    """

    L11: float
    L12: float
    L21: float
    L22: float
    B: float
    kappa: float
    L_Phi: float
    N: int

    def __post_init__(self) -> None:
        for name in ("L11", "L12", "L21", "kappa"):
            not_negative(name, getattr(self, name))
        for name in ("L22", "B", "L_Phi"):
            positive(name, getattr(self, name))
        at_least("N", self.N, 1)
        require(
            self.L22 >= self.B * (1 - 1e-9),
            f"L22 = {self.L22:g} must be at least B = {self.B:g}: strong concavity bends that much",
        )

    @classmethod
    def of(cls, *, L11: float, L12: float, L22: float, B: float, N: int, L21: float | None = None) -> Self:
        """With L21 = L12 unless it is given, and the bounds kappa = L21 / B and L_Phi = L11 + L12 kappa."""
        L21 = L12 if L21 is None else L21
        positive("B", B)
        kappa = L21 / B
        return cls(L11, L12, L21, L22, B, kappa, L11 + L12 * kappa, N)
