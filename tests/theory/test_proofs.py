"""The constants of the paper's proof: where what is printed goes wrong, and that the lemmas hold once derived again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import random_game
from torch import Tensor

from fedmm import FedMM
from fedmm.theory import (
    Constants,
    Observation,
    Phi,
    Residuals,
    around,
    as_printed,
    estimate_constants,
    least_penalties,
    mended,
    observe,
    penalty_range,
    rederived,
)
from fedmm.theory.spectra import Derivatives, Function

ONES = Constants.of(L11=1.0, L12=1.0, L22=1.0, B=1.0, N=2)
TWO = Constants.of(L11=1.0, L12=1.0, L22=2.0, B=1.0, N=2)  # l = 2


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


@st.composite
def constants(draw: st.DrawFn) -> Constants:
    B = draw(powers(-2, 1))
    return Constants.of(
        L11=draw(powers(-2, 2)),
        L12=draw(powers(-4, 1.5)),
        L22=B * draw(powers(0, 1.5)),
        B=B,
        N=draw(st.sampled_from([1, 2, 3, 10, 100])),
    )


# What is printed ------------------------------------------------------------------------------------------------------


def test_the_printed_bounds_on_a3_a4_a5_and_a6_do_not_hold_inside_the_printed_range() -> None:
    found = penalty_range(TWO)
    A = as_printed(TWO, found.mu1_low(), found.mu2_low, found.l).A
    N, l2 = TWO.N, found.l**2
    assert A[1] <= N / (614400 * l2**2)  # as claimed
    assert A[3] > 1 / (1600 * l2)  # 16 / 64^2 is 1/256
    assert A[5] > 573 / (N * l2)  # l^2 belongs into the numerator: mu_2 / B is 64 l^2
    assert A[6] > 516 / (N * l2)
    assert A[5] <= 573 * l2 / N
    assert A[6] <= 516 * l2 / N
    wide = as_printed(ONES, 1e12, 64.0, 1.0).A
    assert wide[4] > ONES.N / 6400  # 4 / 64^2 is 1/1024


def test_the_printed_chain_breaks_at_its_own_b_bar_as_soon_as_l_is_above_one() -> None:
    found = penalty_range(TWO)
    chain = as_printed(TWO, found.mu1_low(), found.mu2_low, found.l)
    assert chain.failure == "B_bar > A_5"
    assert as_printed(ONES, *_least(ONES), 1.0).failure is None


def test_the_printed_c1_is_a_slip_of_the_pen() -> None:
    assert 516 * 512 == 264192  # and not 164092


def test_the_printed_a7_may_exceed_one_where_the_fourth_term_of_mu1_is_small() -> None:
    # A7 <= 1 - B / (2 mu_2 + B) + 2p, and the range lets 2p be as large as 1 / (128 l^2) = B / (2 mu_2)
    mu1 = penalty_range(ONES).mu1_terms()["L21 L12 l sqrt(24576 / (B mu_2))"]
    assert as_printed(ONES, mu1, 64.0, 1.0).A[7] > 1


def _least(c: Constants) -> tuple[float, float]:
    found = penalty_range(c)
    return found.mu1_low(), found.mu2_low


# Derived again --------------------------------------------------------------------------------------------------------


def test_by_hand_a1_to_a4_are_twice_what_is_printed_and_under_other_names() -> None:
    # mu_2 = 64, all constants 1, N = 2: mu_2^4 = 16777216, 32 * 65^2 = 135200
    A = rederived(ONES, 1e6, 64.0).A
    rest = 16777216 - 135200
    assert A[1:5] == pytest.approx((64 / rest, 16 * 4096 / rest, 32 / rest, 32 * 4096 / rest))
    assert A[5:7] == pytest.approx((8 * 65**2 / 128, 8 * 64 / 2))
    assert A[7] == pytest.approx(128 / 129)


@settings(max_examples=200)
@given(constants())
def test_inside_the_printed_range_the_clients_stay_together_and_phi_falls(c: Constants) -> None:
    mu1, mu2 = _least(c)
    chain = rederived(c, mu1, mu2)
    assert chain.B2 < 1
    assert float("inf") > chain.C1
    assert mended(c, mu1, mu2).failure is None


def test_inside_the_printed_range_d3_may_still_be_negative() -> None:
    # a weak coupling and a flat Phi: the 2.4 that B_bar A_2 adds to B_3 is not a multiple of kappa^2
    c = Constants.of(L11=0.03, L12=2e-4, L22=8.0, B=0.35, N=3)
    mu1, mu2 = _least(c)
    assert penalty_range(c).failure(mu1, mu2) is None
    assert rederived(c, mu1, mu2).failure == "D_3 > 0"


@settings(max_examples=4)
@given(constants())
def test_less_is_needed_from_proof_to_proof(c: Constants) -> None:
    stated, _ = _least(c)
    lemmas, means = least_penalties(c, "rederived"), least_penalties(c)
    assert rederived(c, *lemmas).failure is None
    assert mended(c, *means).failure is None
    assert mended(c, 0.98 * means.mu1, means.mu2).failure is not None
    assert means.mu1 < lemmas.mu1
    assert means.mu1 < stated


# Along a run ----------------------------------------------------------------------------------------------------------


def spread(points: Tensor) -> float:
    """Sum over i, j of ||x_i - x_j||^2."""
    return float((points[:, None] - points[None]).square().sum())


def sums(now: Residuals, before: Residuals) -> dict[str, float]:
    steps = (now.points - before.points).square()
    return {
        "epsilon": float(now.epsilon.square().sum()),
        "apsi": spread(now.points[:, 2:]),
        "aomega": spread(now.points[:, :2]),
        "domega": float(steps[:, :2].sum()),
        "dpsi": float(steps[:, 2:].sum()),
    }


@pytest.mark.parametrize(("mu1", "mu2"), [(20.0, 8.0), (60.0, 30.0)])
def test_the_lemmas_hold_along_a_run_from_the_second_round(
    robust: list[Function], origin: tuple[Tensor, Tensor], mu1: float, mu2: float
) -> None:
    algorithm = FedMM(1 / (mu1 + 4), 1 / (mu2 + 2), mu1, mu2, local_steps=40)
    rounds = observe(robust, origin, algorithm, 8).rounds
    assert max(float(each.e_omega.max() + each.e_psi.max()) for each in rounds) < 1e-9
    c = estimate_constants(robust, around(origin, 4.0, 10)).bounds
    A = rederived(c, mu1, mu2).A
    assert min(A) >= 0
    N, L12, L21, L22, B = c.N, c.L12, c.L21, c.L22, c.B
    for before, was, now in zip(rounds, rounds[1:], rounds[2:], strict=False):
        old, new = sums(was, before), sums(now, was)
        # Lemmas "psiconverge", "psidiv", "psiupdate", "boundbaromegat", with the constants as printed there
        assert new["epsilon"] <= (
            8 * mu2 / (N * B) * old["apsi"]
            + 2 * mu2 / (2 * mu2 + B) * old["epsilon"]
            + 8 * mu2 / B * c.kappa**2 * new["domega"]
            + 8 * (mu2 + L22) ** 2 / (N * mu2 * B) * new["apsi"]
            + 8 * L21**2 / (N * mu2 * B) * new["aomega"]
        )
        assert mu2**2 / (2 * N) * new["apsi"] <= 4 * L22**2 * new["dpsi"] + 4 * L21**2 * new["domega"]
        assert new["dpsi"] <= (
            4 * (L22 / mu2) ** 2 * new["epsilon"]
            + 4 * (mu2 + L22) ** 2 / (N * mu2**2) * new["apsi"]
            + 4 * L21**2 / (N * mu2**2) * new["aomega"]
            + 4 / N * old["apsi"]
        )
        assert new["aomega"] / (2 * N) <= 6 / mu1**2 * (
            c.L_Phi**2 * new["domega"] + L12**2 * (new["epsilon"] + old["epsilon"])
        )
        # and what follows from them
        assert new["apsi"] <= A[1] * new["epsilon"] + A[2] * new["domega"] + A[3] * new["aomega"] + A[4] * old["apsi"]
        assert new["epsilon"] <= (
            A[5] * new["apsi"] + A[6] * old["apsi"] + A[7] * old["epsilon"] + A[8] * new["domega"]
        )
        assert new["apsi"] <= (
            A[9] * new["epsilon"] + A[10] * old["epsilon"] + A[4] * old["apsi"] + A[11] * new["domega"]
        )


def test_the_lemmas_do_not_hold_in_the_first_round(robust: list[Function], origin: tuple[Tensor, Tensor]) -> None:
    # Proposition 3 needs dual_i = -F_i(z_i), and the duals start at 0: clients spread by what their gradients differ.
    mu = 60.0
    first = observe(robust, origin, FedMM(1 / 64, 1 / 62, mu, mu, local_steps=40), 1).rounds[0]
    c = estimate_constants(robust, [origin]).bounds
    steps = (first.points - torch.cat(origin)).square()
    bound = 4 * c.L22**2 * float(steps[:, 2:].sum()) + 4 * c.L21**2 * float(steps[:, :2].sum())
    assert mu**2 / (2 * c.N) * spread(first.points[:, 2:]) > 10 * bound


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
