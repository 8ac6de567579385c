"""AUROC and its like from counts: against scikit-learn, in parts, and what a site may say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

from fedmm.core.metrics import Seen, columns_of, values_by_column
from fedmm.core.signals.ranking import Ranking

RANKING = Ranking()
Numbers = NDArray[np.float64]


def seen(scores: Numbers, y: NDArray[np.int64]) -> Seen:
    s = torch.from_numpy(np.array(scores, dtype=np.float64))
    return Seen(torch.stack([torch.zeros_like(s), s], dim=-1), torch.from_numpy(np.array(y, dtype=np.int64)))


def measured(scores: Numbers, y: NDArray[np.int64]) -> dict[str, float]:
    sums = RANKING.sums(seen(scores, y))
    return {name: float(value) for name, value in values_by_column("x_ranking", RANKING, sums, len(y)).items()}


def test_scores_that_have_bins_of_their_own_give_the_values_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    for positives in (1, 30, 400):
        scores = draw.choice(np.linspace(-6.0, 6.0, 97), size=2000)  # with ties
        y = np.zeros(2000, dtype=np.int64)
        y[draw.choice(2000, positives, replace=False)] = 1
        found = measured(scores, y)
        assert found["x_auroc"] == pytest.approx(roc_auc_score(y, scores), abs=1e-12)
        assert found["x_balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, scores > 0), abs=1e-12)
        apart = scores + 0.06 * y  # no score of one class is one of the other
        assert measured(apart, y)["x_auroc_error"] == 0.0
        assert measured(apart, y)["x_average_precision"] == pytest.approx(_average_precision(apart, y), abs=1e-10)


def _average_precision(scores: Numbers, y: NDArray[np.int64]) -> float:
    """With ties among positives in any order, where scikit-learn gives all of them the precision of the last."""
    return float(average_precision_score(y, scores - 1e-9 * np.arange(len(y))))


@pytest.mark.parametrize("positives", [40, 400, 4000])
@pytest.mark.parametrize(
    ("centre", "spread"),
    [
        (0.0, 1.0), (-4.6, 1.0), (-4.6, 0.3), (0.0, 1e-3), (0.1, 0.02), (0.0, 20.0), (8.0, 3.0), (-5.0, 0.005),
        (-5.0, 5e-4), (0.3, 3e-5), (40.0, 0.01), (2000.0, 1.0),
    ],
    ids=[
        "usual", "rare", "rare and alike", "untrained", "hardly trained", "sure", "shifted", "in a band",
        "in a narrow band", "alike near 0", "sure and alike", "very sure and alike",
    ],
)  # fmt: skip
def test_auroc_is_exact_to_a_thousandth_and_says_so(centre: float, spread: float, positives: int) -> None:
    draw = np.random.default_rng(1)
    y = np.zeros(20_000, dtype=np.int64)
    y[:positives] = 1
    scores = (centre + spread * (draw.normal(size=len(y)) + 1.2 * y)).astype(np.float32).astype(np.float64)
    found = measured(scores, y)
    assert found["x_auroc_error"] <= 1e-3
    assert found["x_auroc"] == pytest.approx(roc_auc_score(y, scores), abs=1e-3)
    assert found["x_average_precision"] == pytest.approx(average_precision_score(y, scores), abs=1e-3)
    assert abs(found["x_auroc"] - roc_auc_score(y, scores)) <= found["x_auroc_error"] + 1e-12
    average = average_precision_score(y, scores)
    assert abs(found["x_average_precision"] - average) <= found["x_average_precision_error"] + 1e-9
    assert found["x_balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, scores > 0), abs=1e-12)


SCORES = (
    st.floats(width=32, allow_nan=False)
    | st.floats(-1e6, 1e6)
    | st.floats(4.999, 5.001)
    | st.floats(-5.00001, -4.99999)
    | st.sampled_from([5.0, 5.0001, 5.01, 0.0, -0.0, 1e-300, 1e4, 1.1e4, math.inf, -math.inf])
)


@settings(max_examples=300)
@given(st.lists(st.tuples(SCORES, st.booleans()), min_size=2, max_size=60))
def test_the_error_that_is_told_is_never_passed(rows: list[tuple[float, bool]]) -> None:
    scores = np.array([score for score, _ in rows]).clip(-1e39, 1e39)  # scikit-learn takes no infinite ones
    y = np.array([label for _, label in rows], dtype=np.int64)
    found = measured(scores, y)
    if len(set(y)) < 2:
        assert all(np.isnan(value) for value in found.values())
        return
    assert abs(found["x_auroc"] - roc_auc_score(y, scores)) <= found["x_auroc_error"] + 1e-12
    average = average_precision_score(y, scores)
    assert abs(found["x_average_precision"] - average) <= found["x_average_precision_error"] + 1e-9
    assert found["x_balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, scores > 0), abs=1e-12)


def test_scores_of_few_rows_are_told_apart_as_far_as_float32_can_wherever_they_lie() -> None:
    y = np.arange(300) % 7 == 0
    for centre in (-4000.0, -5.0, 0.05, 30.0):
        steps = np.arange(300) if centre > 0 else -np.arange(300)
        scores = np.float64(centre) * (1.0 + steps * 2.0**-22)  # every second float32, at the least
        found = measured(scores, y.astype(np.int64))
        assert found["x_auroc_error"] == 0.0
        assert found["x_auroc"] == pytest.approx(roc_auc_score(y, scores), abs=1e-12)
        assert found["x_average_precision"] == pytest.approx(average_precision_score(y, scores), abs=1e-10)


def test_ties_of_few_scores_are_taken_as_scikit_learn_takes_them() -> None:
    draw = np.random.default_rng(5)
    y = (draw.random(3000) < 0.3).astype(np.int64)
    scores = draw.choice([-5.0, -4.9999, -4.9, 0.01, 3.0], size=3000) + 0.0
    found = measured(scores, y)
    assert found["x_auroc"] == pytest.approx(roc_auc_score(y, scores), abs=1e-12)
    assert found["x_average_precision"] == pytest.approx(average_precision_score(y, scores), abs=1e-12)
    assert measured(np.zeros(3000), y)["x_auroc"] == 0.5
    assert measured(np.zeros(3000), y)["x_average_precision"] == pytest.approx(y.mean(), abs=1e-12)


def test_a_dense_core_in_wide_tails_is_less_exact_and_says_so() -> None:
    draw = np.random.default_rng(6)
    y = (draw.random(8000) < 0.3).astype(np.int64)
    core = draw.random(8000) < 0.8
    scores = np.where(core, -5 + 0.005 * (draw.normal(size=8000) + y), 3 * draw.normal(size=8000) + y)
    found = measured(scores, y)
    assert 1e-3 < found["x_auroc_error"] < 0.25
    assert abs(found["x_auroc"] - roc_auc_score(y, scores)) <= found["x_auroc_error"]


def test_what_sites_count_adds_up_and_one_class_at_each_is_enough() -> None:
    draw = np.random.default_rng(2)
    y = (draw.random(900) < 0.1).astype(np.int64)
    scores = draw.normal(size=900) + y
    whole = RANKING.sums(seen(scores, y))
    parts = [RANKING.sums(seen(scores[y == label], y[y == label])) for label in (0, 1)]
    assert torch.equal(parts[0] + parts[1], whole)
    assert RANKING.value(parts[0], len(y)).isnan().all()
    stacked = Seen(*(torch.stack([each, each]) for each in (seen(scores, y).logits, seen(scores, y).y)))
    assert torch.equal(RANKING.sums(stacked), torch.stack([whole, whole]))
    broken = torch.full_like(whole, torch.nan)
    values = RANKING.value(torch.stack([parts[0], whole, broken]), len(y))
    assert torch.equal(values[1], RANKING.value(whole, len(y)))
    assert values[0].isnan().all()
    assert values[2].isnan().all()


def test_infinite_scores_are_ranked_and_undefined_ones_are_told() -> None:
    y = np.array([0, 0, 1, 1])
    assert measured(np.array([-np.inf, 0.0, 1.0, np.inf]), y)["x_auroc"] == 1.0
    assert np.isnan(measured(np.array([-1.0, 0.0, 1.0, np.nan]), y)["x_auroc"])


def test_columns_are_named_by_the_rows_and_the_part() -> None:
    assert columns_of("target_ranking", RANKING) == [
        "target_auroc", "target_auroc_error", "target_average_precision", "target_average_precision_error",
        "target_balanced_accuracy",
    ]  # fmt: skip


def test_sums_that_no_rows_have_are_found_out() -> None:
    y = np.array([0, 1, 1])
    sums = RANKING.sums(seen(np.array([-1.0, 0.5, 2.0]), y))
    assert RANKING.count(2) == len(sums)
    assert RANKING.flaw(sums, 3, 2) == ""
    assert RANKING.flaw(sums, 4, 2) == "a row is in no bin, or in two"
    assert RANKING.flaw(sums / 2, 3, 2) == "it is not a number of rows"
    assert RANKING.flaw(-sums, 3, 2) == "it is not a number of rows"
    for histogram in range(1, len(sums) // (2 * 8192)):
        moved = sums.clone()
        place = histogram * 8192 + int(sums[histogram * 8192 :].nonzero()[0])
        moved[place], moved[place + (8 if place % 8192 < 8000 else -8)] = 0.0, 1.0
        assert RANKING.flaw(moved, 3, 2) == "its histograms are not of the same rows"


def test_a_class_with_too_few_rows_is_withheld() -> None:
    y = np.array([0] * 9 + [1] * 3)
    sums = RANKING.sums(seen(np.arange(12.0), y))
    assert RANKING.rows_by_class(sums) == (9, 3)
    kept = RANKING.withheld(sums, 5)
    assert RANKING.rows_by_class(kept) == (9, 0)
    assert float(kept.sum()) == float(sums.sum()) * 9 / 12
    assert torch.equal(RANKING.withheld(sums, 3), sums)
