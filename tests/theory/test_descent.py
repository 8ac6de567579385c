"""The theorem, along runs whose penalties it admits: every inequality of the mended proof, and the descent of Phi."""

from __future__ import annotations

import pytest
import torch
from problems import random_game
from torch import Tensor

from fedmm import FedMM
from fedmm.theory import (
    Constants,
    Observation,
    Phi,
    around,
    estimate_constants,
    least_penalties,
    mended,
    observe,
    penalty_range,
)
from fedmm.theory.derivatives import Derivatives, Function

FLOAT64 = torch.float64
Start = tuple[Tensor, Tensor]


def exactly(c: Constants, mu1: float, mu2: float, steps: int = 30) -> FedMM:
    """FedMM with local steps enough to solve local problems to rounding: each shrinks the error by L / (mu + L)."""
    return FedMM(1 / (mu1 + 2 * c.L11), 1 / (mu2 + 2 * c.L22), mu1, mu2, local_steps=steps)


def square(vector: Tensor) -> float:
    return float(vector.square().sum())


class Letters:
    """The sums of the proof, over t = 1 ... T of a run from the origin."""

    def __init__(self, functions: list[Function], start: Start, seen: Observation, mu1: float) -> None:
        split = seen.layout.min_size
        phi = Phi(functions, start)
        points = torch.stack([torch.cat(start).expand_as(seen.rounds[0].points), *(r.points for r in seen.rounds)])
        means = points.mean(dim=1)
        steps, own = means.diff(dim=0), points.diff(dim=0)[1:]
        apart = points[1:] - means[1:, None]
        N = points.shape[1]
        self.x, self.y = square(steps[:, :split]), square(steps[:, split:])
        self.v, self.s = square(own[..., :split]) / N, square(own[..., split:]) / N
        self.w, self.p = square(apart[..., :split]) / N, square(apart[..., split:]) / N
        self.w1, self.p1 = square(apart[0][:, :split]) / N, square(apart[0][:, split:]) / N
        self.d0 = square(start[1] - seen.start.psi)
        self.g = sum(square(each.e_omega) for each in seen.rounds) / N
        self.j = sum(square(each.e_psi) for each in seen.rounds) / N
        self.q = self.d = self.r = 0.0
        for mean, step, each in zip(means[1:], steps, points[1:], strict=True):
            best = phi.at(mean[:split])
            there = [Derivatives(f, seen.layout, z).gradient for f, z in zip(functions, each, strict=True)]
            here = [Derivatives(f, seen.layout, mean).gradient for f in functions]
            field, at_mean = torch.stack(there).mean(0), torch.stack(here).mean(0)
            self.q += square((field - at_mean)[split:])
            self.d += square(mean[split:] - best.psi)
            self.r += square(mu1 * step[:split] + best.gradient)  # by (1)
        self.fall = phi.at(means[-1][:split]).value - seen.start.value
        self.slopes = sum(norm**2 for norm in seen.gradient_norms)


def check(c: Constants, mu1: float, mu2: float, a: Letters) -> None:
    """Every inequality of the proof, from the first to the theorem's."""
    h, k = 1.05, 21.0
    slack = 1 + 1e-9
    assert a.v <= (a.x + 4 * a.w) * slack
    assert a.s <= (a.y + 4 * a.p) * slack
    assert a.w <= (a.w1 + (2 * h * (c.L11**2 * a.v + c.L12**2 * a.s) + 4 * k * a.g) / mu1**2) * slack
    assert a.p <= (a.p1 + (2 * h * (c.L21**2 * a.v + c.L22**2 * a.s) + 4 * k * a.j) / mu2**2) * slack
    assert a.q <= (2 * c.L21**2 * a.w + 2 * c.L22**2 * a.p) * slack
    drawn = 2 * (mu2 * c.kappa / c.B) ** 2 * a.x + 2 / c.B**2 * (h * a.q + k * a.j)
    assert a.d <= (mu2 / c.B * a.d0 + drawn) * slack
    assert a.y <= (2 * h * (c.L22**2 * a.d + a.q) + k * a.j) / mu2**2 * slack
    assert a.r <= (3 * h * (c.L11**2 * a.w + c.L12**2 * (a.p + a.d)) + k * a.g) * slack
    assert a.fall <= -(mu1 - c.L_Phi) / 2 * a.x + a.r / (2 * mu1) + 1e-12
    assert a.slopes <= 2 * (mu1 + c.L_Phi) ** 2 * a.x + 2 * a.r + 1e-12
    bound = mended(c, mu1, mu2)
    assert bound.failure is None
    first = bound.E2 * a.d0 + bound.E3 * a.w1 + bound.E4 * a.p1
    assert a.fall <= -bound.E1 * a.slopes + first + bound.E5 * a.g + bound.E6 * a.j + 1e-12


@pytest.mark.parametrize("times", [1.0, 10.0])
def test_every_inequality_holds_along_a_nonconvex_run(robust: list[Function], origin: Start, times: float) -> None:
    c = estimate_constants(robust, around(origin, 4.0, 10)).bounds
    least = least_penalties(c)
    mu1, mu2 = times * least.mu1, times * least.mu2
    seen = observe(robust, origin, exactly(c, mu1, mu2), 8)
    assert max(float((each.e_omega + each.e_psi).max()) for each in seen.rounds) < 1e-10
    check(c, mu1, mu2, Letters(robust, origin, seen, mu1))


@pytest.mark.parametrize("steps", [2, 6])
def test_every_inequality_holds_where_local_problems_are_left_unsolved(
    robust: list[Function], origin: Start, steps: int
) -> None:
    c = estimate_constants(robust, around(origin, 4.0, 10)).bounds
    mu1, mu2 = least_penalties(c)
    seen = observe(robust, origin, exactly(c, mu1, mu2, steps=steps), 15)
    assert max(float((each.e_omega + each.e_psi).max()) for each in seen.rounds) > 1e-3
    check(c, mu1, mu2, Letters(robust, origin, seen, mu1))


@pytest.mark.parametrize("seed", range(3))
def test_every_inequality_holds_on_quadratic_games(seed: int) -> None:
    game = random_game(seed, sizes=(2, 2))
    clients: list[Function] = list(game.clients)  # type: ignore[arg-type]
    c = estimate_constants(clients, [game.start]).bounds
    mu1, mu2 = least_penalties(c)
    seen = observe(clients, game.start, exactly(c, mu1, mu2), 8)
    check(c, mu1, mu2, Letters(clients, game.start, seen, mu1))


# The paper's own range ------------------------------------------------------------------------------------------------


def weakly_coupled(slope: float, shift: float) -> Function:
    """log cosh is convex with a bend of at most 1, the sine makes it nonconvex; the coupling is 1/100."""

    def f(w: Tensor, p: Tensor) -> Tensor:
        base = torch.log(torch.cosh(w - shift)) + torch.sin(2 * w) / 4 + slope * w
        return (base + 0.01 * w * p - p**2 / 2 + p).sum()

    return f


def test_inside_the_papers_range_phi_falls_to_a_stationary_point() -> None:
    # With a coupling of 1/100 the term with kappa^4 L12^2 is 0.1, and mu_1 = 4 L_Phi decides. The cost: mu_2 = 64 B
    # lets psi go 1/65 of its way a round, and a round of omega is a gradient step of length 1 / (4 L_Phi).
    clients = [weakly_coupled(0.3, 2.0), weakly_coupled(-0.2, -1.0)]
    start = (torch.full((1,), 0.5, dtype=FLOAT64), torch.zeros(1, dtype=FLOAT64))
    c = Constants.of(L11=2.0, L12=0.01, L22=1.0, B=1.0, N=2)
    estimated = estimate_constants(clients, around(start, 3.0, 20)).bounds
    assert estimated.L11 <= c.L11
    assert pytest.approx((c.L12, c.B)) == (estimated.L12, estimated.B)
    stated = penalty_range(c)
    algorithm = exactly(c, stated.mu1_low(), stated.mu2_low, steps=20)
    assert stated.admits(algorithm)

    seen = observe(clients, start, algorithm, 60)

    assert seen.gradient_norms[-1] < 0.05 * seen.gradient_norms[0]
    check(c, stated.mu1_low(), stated.mu2_low, Letters(clients, start, seen, stated.mu1_low()))


def test_with_an_ordinary_coupling_the_papers_range_stands_still(robust: list[Function], origin: Start) -> None:
    c = estimate_constants(robust, around(origin, 4.0, 10)).bounds
    stated = penalty_range(c)
    mu1, mu2 = stated.mu1_low(), stated.mu2_low
    assert mu1 > 1e9
    seen = observe(robust, origin, exactly(c, mu1, mu2), 5)
    check(c, mu1, mu2, Letters(robust, origin, seen, mu1))
    assert seen.gradient_norms[-1] > (1 - 1e-6) * seen.gradient_norms[0]
