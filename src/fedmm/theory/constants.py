"""The constants of the paper's assumptions: given, or estimated from Hessian-vector products at sampled points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.layout import Layout, Point
from fedmm.core.validation import at_least, not_negative, positive
from fedmm.theory.residuals import Phi
from fedmm.theory.spectra import (
    Derivatives,
    Function,
    extreme_eigenvalues,
    mean_of,
    require_functions,
    solve_definite,
    spectral_norm,
    symmetric_norm,
)


@dataclass(frozen=True)
class Constants:
    """The convergence theorem's constants of a problem; every bound holds for every client's f_i.

    ========  ======================================================================================
    field     meaning
    ========  ======================================================================================
    L11, L12  d_omega f_i is L11-Lipschitz in omega, and L12-Lipschitz in psi
    L21, L22  d_psi f_i is L21-Lipschitz in omega, and L22-Lipschitz in psi
    B         f_i is B-strongly concave in psi
    kappa     psi*(omega) = argmax of f(omega, .) is kappa-Lipschitz; kappa <= L21 / B
    L_Phi     the gradient of Phi(omega) = f(omega, psi*(omega)) is L_Phi-Lipschitz; L_Phi <= L11 + L12 kappa
    N         the number of clients
    ========  ======================================================================================

    L12 = L21 if f_i is twice continuously differentiable.
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
            f"L22 = {self.L22:g} must be at least B = {self.B:g}, since f_i is B-strongly concave in psi",
        )

    @classmethod
    def of(cls, *, L11: float, L12: float, L22: float, B: float, N: int, L21: float | None = None) -> Self:
        """Return constants with L21 = L12 by default, and the bounds kappa = L21 / B and L_Phi = L11 + L12 kappa."""
        L21 = L12 if L21 is None else L21
        positive("B", B)
        kappa = L21 / B
        return cls(L11, L12, L21, L22, B, kappa, L11 + L12 * kappa, N)


_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Estimate:
    """Constants found at the sampled points; exact for quadratic games, whose Hessians are the same everywhere.

    bounds: L11, L12, L21, L22 and B as found, with kappa = L21 / B and L_Phi = L11 + L12 kappa.
    measured: the same L and B, with kappa and L_Phi measured along ``psi*(omega)``: the norm of its derivative, and the
        largest norm over clients of the derivative of ``d_omega f_i(omega, psi*(omega))``, which bounds that of Phi.

    Each L, and the measured kappa and L_Phi, is a *lower* bound of the supremum in the theorem, and B an *upper* bound
    of the infimum: elsewhere the functions may have larger curvature. Fewer Lanczos steps than a side has coordinates
    err in the same direction.
    """

    bounds: Constants
    measured: Constants


def estimate_constants(
    functions: Sequence[Function], points: Sequence[tuple[Point, Point]], *, steps: int = 100
) -> Estimate:
    """Estimate the theorem's constants from spectra of Hessian blocks, the worst over all clients and points.

    functions: f_i(omega, psi), one per client, twice differentiable and strongly concave in psi.
    points: the (omega, psi) to sample, for example :func:`around` a start, or the path of an observed run.
    steps: Lanczos steps per spectrum; exact to rounding if no side has more coordinates. Each step for kappa and L_Phi
        solves a linear system by conjugate gradients: on large problems, begin with few steps and points.
    """
    require_functions(functions)
    require(len(points) > 0, "estimate_constants needs at least one point")
    at_least("steps", steps, 1)
    layout = Layout.of(*points[0])
    require(0 < layout.min_size < layout.size, "both omega and psi need at least one coordinate")
    phi = Phi(functions, points[0])
    found = [_blocks(function, layout, layout.pack(*point), steps) for function in functions for point in points]
    largest = torch.tensor([estimate[:3] for estimate in found], dtype=torch.float64).amax(dim=0)
    L11, L12, L22 = (float(value) for value in largest)
    B = min(estimate[3] for estimate in found)
    if B <= 0:
        client = min(range(len(found)), key=lambda k: found[k][3]) // len(points) + 1
        raise FedmmError(
            f"the function of client {client} is not strongly concave in psi at a given point: the largest eigenvalue "
            f"of its Hessian there is {-B:.3g}, and the theorem needs it below 0"
        )
    along = [_response(functions, layout, phi, layout.pack(*point)[: layout.min_size], steps) for point in points]
    kappa, L_Phi = max(k for k, _ in along), max(bend for _, bend in along)
    bounds = Constants.of(L11=L11, L12=L12, L22=max(L22, B), B=B, N=len(functions))
    measured = Constants(L11, L12, L12, bounds.L22, B, kappa, L_Phi, len(functions))
    return Estimate(bounds, measured)


def around(start: tuple[Point, Point], radius: float, count: int, seed: int = 0) -> list[tuple[Point, Point]]:
    """Return the start and ``count`` points drawn uniformly from the ball of this radius around it in (omega, psi)."""
    positive("radius", radius)
    at_least("count", count, 0)
    layout = Layout.of(*start)
    centre = layout.pack(*start)
    generator = torch.Generator().manual_seed(seed)
    found = [layout.unpack(centre)]
    for _ in range(count):
        direction = torch.randn(layout.size, generator=generator, dtype=torch.float64)
        length = radius * torch.rand((), generator=generator, dtype=torch.float64) ** (1 / layout.size)
        found.append(layout.unpack(centre + (length * direction / direction.norm()).to(centre)))
    return found


def _blocks(function: Function, layout: Layout, z: Tensor, steps: int) -> tuple[float, float, float, float]:
    """Return L11, L12, L22 and B of one client at one point."""
    here = Derivatives(function, layout, z)
    omega, psi = here.side("omega"), here.side("psi")
    bend = symmetric_norm(lambda v: here.block("omega", "omega", v), omega, steps)
    mixed = spectral_norm(lambda v: here.block("omega", "psi", v), lambda u: here.block("psi", "omega", u), psi, steps)
    low, high = extreme_eigenvalues(lambda v: here.block("psi", "psi", v), psi, steps)
    return bend, mixed, max(-low, high), -high


def _response(
    functions: Sequence[Function], layout: Layout, phi: Phi, omega: Tensor, steps: int
) -> tuple[float, float]:
    """Return ||d psi*|| at omega, and the largest norm of d/d omega of d_omega f_i(omega, psi*(omega))."""
    z = torch.cat([omega, phi.at(omega).psi])
    mean = Derivatives(mean_of(functions), layout, z)
    like = mean.side("omega")

    def inverse(v: Tensor) -> Tensor:
        return solve_definite(lambda u: -mean.block("psi", "psi", u), v, _TOLERANCE)

    def response(v: Tensor) -> Tensor:
        return inverse(mean.block("psi", "omega", v))

    def transposed(u: Tensor) -> Tensor:
        return mean.block("omega", "psi", inverse(u))

    bends = []
    for function in functions:
        here = Derivatives(function, layout, z)

        def along(v: Tensor, here: Derivatives = here) -> Tensor:
            return here.block("omega", "omega", v) + here.block("omega", "psi", response(v))

        def back(u: Tensor, here: Derivatives = here) -> Tensor:
            return here.block("omega", "omega", u) + transposed(here.block("psi", "omega", u))

        bends.append(spectral_norm(along, back, like, steps))
    return spectral_norm(response, transposed, like, steps), max(bends)
