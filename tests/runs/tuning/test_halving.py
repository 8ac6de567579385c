"""The schedule of a tuning, as plain numbers, and what of it fits into a time budget."""

from __future__ import annotations

import pytest

from fedmm.core.errors import FedmmError
from fedmm.runs.tuning.halving import Budget, Pace, Rung, count_halvings, estimate_seconds, fit_rungs, plan_rungs


@pytest.mark.parametrize(
    ("candidates", "rounds", "halvings"),
    [(60, 150, 1), (60, 3000, 1), (60, 29, 0), (60, 30, 1), (3, 3000, 1), (2, 3000, 0), (0, 3000, 0)],
)
def test_the_field_is_cut_once_where_two_finalists_and_ten_rounds_in_the_first_rung_are_left(
    candidates: int, rounds: int, halvings: int
) -> None:
    assert count_halvings(candidates, rounds, 2) == halvings


def test_each_rung_keeps_its_share_for_three_times_as_long_and_the_last_has_all_seeds() -> None:
    assert plan_rungs(60, 150, 1, 2, 5) == [Rung(50, 60, 1), Rung(150, 30, 5)]
    assert plan_rungs(42, 150, 2, 3, 5) == [Rung(16, 42, 1), Rung(50, 14, 1), Rung(150, 5, 5)]
    assert plan_rungs(7, 20, 0, 3, 3) == [Rung(20, 7, 3)]


def test_an_eta_of_one_is_refused() -> None:
    with pytest.raises(FedmmError, match="eta must be at least 2, not 1"):
        count_halvings(10, 100, 1)


def test_what_rungs_cost_is_their_rounds_and_what_every_rung_takes() -> None:
    rungs = [Rung(10, 8, 1), Rung(30, 2, 3)]
    assert estimate_seconds(rungs, 2, Pace(0.1, 5.0)) == pytest.approx(5 + 10 + 5 + 36)
    assert estimate_seconds(rungs, 2, Pace(0.1, 5.0, 0.5)) == pytest.approx(56 + 0.5 * (10 + 12))


def test_all_candidates_stay_where_the_time_is_enough() -> None:
    rungs = plan_rungs(42, 150, 1, 3, 3)
    assert fit_rungs(rungs, 3, 2, Pace(0.01, 1.0), 1e6) == rungs


def test_with_less_time_fewer_candidates_run_full_length() -> None:
    rungs = plan_rungs(42, 150, 1, 3, 3)
    pace = Pace(0.01, 0.0)
    fitted = fit_rungs(rungs, 3, 2, pace, 30.0)
    assert fitted[-1].rounds == 150
    assert 1 <= fitted[0].candidates < 42
    assert estimate_seconds(fitted, 2, pace) <= 30.0
    more = plan_rungs(fitted[0].candidates + 1, 150, len(fitted) - 1, 3, 3)
    assert estimate_seconds(more, 2, pace) > 30.0


def test_where_one_candidate_is_too_slow_the_rounds_are_cut() -> None:
    fitted = fit_rungs(plan_rungs(42, 150, 1, 3, 3), 3, 2, Pace(0.01, 0.0), 5.0)
    assert fitted == [Rung(55, 1, 3)]
    assert fit_rungs([Rung(150, 0, 3)], 3, 2, Pace(1.0, 0.0), 0.0) == [Rung(1, 0, 3)]


def test_a_budget_goes_by_its_clock() -> None:
    now = [10.0]
    budget = Budget(60.0, lambda: now[0])
    now[0] = 50.0
    assert (budget.limited, budget.spent(), budget.left(), budget.over()) == (True, 40.0, 20.0, False)
    now[0] = 70.0
    assert budget.over()
    endless = Budget(None, lambda: now[0])
    assert (endless.limited, endless.left(), endless.over()) == (False, float("inf"), False)
