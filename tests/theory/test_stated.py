"""The paper's range, beside numbers worked out by hand."""

from __future__ import annotations

from math import sqrt

import pytest

from fedmm import FedMM
from fedmm.core.errors import FedmmError
from fedmm.theory import Constants, PenaltyRange, penalty_range

ONES = Constants.of(L11=1.0, L12=1.0, L22=1.0, B=1.0, N=2)  # kappa = 1, L_Phi = 2


def test_with_all_constants_one_the_range_is_the_one_worked_out_by_hand() -> None:
    found = penalty_range(ONES)
    assert found.l == 1
    assert (found.mu2_low, found.mu2_high) == (64, 64)
    # 164092^2 = 26926184464; times 7, over L_Phi = 2
    assert found.mu1_low() == 94241645624.0
    assert list(found.mu1_terms().values()) == pytest.approx([sqrt(384), 0.8, 8.0, 94241645624.0])


def test_the_range_scales_as_its_terms_say() -> None:
    # L22 = 3, L12 = L21 = 2, B = 1/2: l = 6, kappa = 4, L_Phi = 5 + 8; mu_2 = 64 * 36 / 2 = 1152 = 64 * 3 * 6
    found = penalty_range(Constants.of(L11=5.0, L12=2.0, L22=3.0, B=0.5, N=50))
    assert found.l == 6
    assert (found.mu2_low, found.mu2_high) == (1152, 1152)
    # 4 * 6 * sqrt(24576 / 576);  2 * sqrt(16);  52;  7 * 26926184464 * 6^4 * 4^4 * 2^2 / 13
    expected = [24 * sqrt(42 + 2 / 3), 8.0, 52.0, 188483291248 * 1296 * 256 * 4 / 13]
    assert list(found.mu1_terms().values()) == pytest.approx(expected)


def test_a_larger_l_opens_the_range_of_mu2_and_costs_mu1_its_fourth_power() -> None:
    wide = penalty_range(ONES, l=2.0)
    assert (wide.mu2_low, wide.mu2_high) == (128, 256)
    assert wide.mu1_low() == 16 * penalty_range(ONES).mu1_low()
    with pytest.raises(FedmmError, match=r"l must be at least max\(L22, L12\) / B = 1"):
        penalty_range(ONES, l=0.5)


@pytest.mark.parametrize(
    ("mu1", "mu2", "failing"),
    [
        (1e11, 64.0, None),
        (1e11, 63.0, "64 L22 l <= mu_2 does not hold: 64 > 63"),
        (1e11, 65.0, "mu_2 <= 64 l^2 B does not hold: 65 > 64"),
        (1.0, 64.0, "L21 L12 l sqrt(24576 / (B mu_2)) <= mu_1 does not hold: 19.6 > 1"),
        (1e10, 64.0, "7 164092^2 l^4 kappa^4 L12^2 / L_Phi <= mu_1 does not hold: 9.424e+10 > 1e+10"),
    ],
)
def test_the_first_broken_inequality_is_named(mu1: float, mu2: float, failing: str | None) -> None:
    found: PenaltyRange = penalty_range(ONES)
    assert found.failure(mu1, mu2) == failing
    assert found.admits(FedMM(penalty_min=mu1, penalty_max=mu2)) == (failing is None)


def test_what_the_theorem_does_not_speak_of_is_named() -> None:
    found = penalty_range(ONES)
    decaying = FedMM(penalty_min=1e11, penalty_max=64.0, dual_decay=0.99)
    assert found.failure_of(decaying) == "eta_3 = 1 does not hold: dual_decay is 0.99"
    grouped = FedMM(penalty_min={"features": 1e11, "*": 2e11}, penalty_max=64.0)
    assert found.failure_of(grouped) == "penalty_min is not one number for all parameters"
    assert found.admits(FedMM(penalty_min={"features": 1e11, "*": 1e11}, penalty_max={"*": 64.0}))
