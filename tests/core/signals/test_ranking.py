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

from fedmm import FedmmError
from fedmm.core.metrics import MOST_COUNTS, Accuracy, Seen, columns_of, count_finer, values_by_column
from fedmm.core.signals.ranking import MOST_EDGES, Ranking

RANKING = Ranking()
Numbers = NDArray[np.float64]


def seen(scores: Numbers, y: NDArray[np.int64]) -> Seen:
    s = torch.from_numpy(np.array(scores, dtype=np.float64))
    return Seen(torch.stack([torch.zeros_like(s), s], dim=-1), torch.from_numpy(np.array(y, dtype=np.int64)))


def measured(scores: Numbers, y: NDArray[np.int64]) -> dict[str, float]:
    """From one count."""
    return values(RANKING, RANKING.sums(seen(scores, y)), y)


def values(ranking: Ranking, sums: torch.Tensor, y: NDArray[np.int64]) -> dict[str, float]:
    return {name: float(value) for name, value in values_by_column("x_ranking", ranking, sums, len(y)).items()}


def counted_finer(scores: Numbers, y: NDArray[np.int64]) -> tuple[dict[str, float], Ranking]:
    """From as many counts as are taken, and the bins of the last one."""
    rows = seen(scores, y)
    metric, sums = count_finer(RANKING, RANKING.sums(rows), len(y), lambda finer: finer.sums(rows))
    assert isinstance(metric, Ranking)
    return values(metric, sums, y), metric


def assert_exact(scores: Numbers, y: NDArray[np.int64]) -> None:
    """To 0.001 of scikit-learn, and by the errors that are told, which are never passed."""
    found, ranking = counted_finer(scores, y)
    with np.errstate(over="ignore"):
        s = scores.astype(np.float32).astype(np.float64).clip(-1e39, 1e39)  # scikit-learn takes no infinite ones
    s = np.where(s == 0, np.sign(scores) * np.finfo(np.float32).smallest_subnormal, s)
    assert len(ranking.edges) <= MOST_EDGES
    assert found["x_auroc_error"] <= 1e-3
    assert found["x_average_precision_error"] <= 1e-3
    assert abs(found["x_auroc"] - roc_auc_score(y, s)) <= found["x_auroc_error"] + 1e-12
    assert abs(found["x_average_precision"] - average_precision_score(y, s)) <= (
        found["x_average_precision_error"] + 1e-9
    )
    assert found["x_balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, scores > 0), abs=1e-12)


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
    found, _ = counted_finer(scores, y)
    assert found["x_auroc_error"] <= 1e-3
    assert found["x_average_precision_error"] <= 1e-3
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
    y = (np.arange(300) % 7 == 0).astype(np.int64)
    for centre in (-4000.0, -5.0, 0.05, 30.0):
        steps = np.arange(300) if centre > 0 else -np.arange(300)
        assert_exact(np.float64(centre) * (1.0 + steps * 2.0**-22), y)  # every second float32, at the least


def test_bins_of_one_score_are_exact_to_the_rounding_of_float64() -> None:
    """Few scores: every one gets a bin one key wide where its rows are of both classes."""
    draw = np.random.default_rng(5)
    y = (draw.random(3000) < 0.3).astype(np.int64)
    scores = draw.choice(np.float32([-5.0, -4.9999995, -4.9999, -4.9, 0.01, 3.0, 1e-42]), size=3000).astype(np.float64)
    keys = torch.from_numpy(np.unique(scores).astype(np.float32)).view(torch.int32).long()
    keys = torch.where(keys < 0, -(keys & 0x7FFFFFFF), keys)
    ranking = RANKING.with_edges(torch.cat([keys, keys - 1, keys.new_zeros(1)]).unique().int())
    found = values(ranking, ranking.sums(seen(scores, y)), y)
    assert found["x_auroc"] == pytest.approx(roc_auc_score(y, scores), abs=1e-12)
    assert found["x_average_precision"] == pytest.approx(average_precision_score(y, scores), abs=1e-12)
    assert found["x_auroc_error"] == found["x_average_precision_error"] == 0.0


def test_ties_of_few_scores_are_taken_as_scikit_learn_takes_them() -> None:
    draw = np.random.default_rng(5)
    y = (draw.random(3000) < 0.3).astype(np.int64)
    scores = draw.choice([-5.0, -4.9999, -4.9, 0.01, 3.0], size=3000).astype(np.float32).astype(np.float64)
    found, _ = counted_finer(scores, y)
    assert found["x_auroc"] == pytest.approx(roc_auc_score(y, scores), abs=1e-12)
    assert found["x_average_precision"] == pytest.approx(average_precision_score(y, scores), abs=1e-12)
    for constant in (0.0, -1.2345, 1e-42, 3e38, np.inf, -np.inf):
        found, _ = counted_finer(np.full(3000, constant), y)
        assert found["x_auroc"] == 0.5
        assert found["x_average_precision"] == pytest.approx(y.mean(), abs=1e-12)
        assert found["x_auroc_error"] == found["x_average_precision_error"] == 0.0


def test_scores_that_float32_does_not_tell_apart_are_tied() -> None:
    found, _ = counted_finer(np.array([1.0, 1.0 + 1e-9]), np.array([0, 1]))
    assert (found["x_auroc"], found["x_auroc_error"]) == (0.5, 0.0)


def test_a_dense_core_in_wide_tails_is_exact_too() -> None:
    draw = np.random.default_rng(6)
    y = (draw.random(8000) < 0.3).astype(np.int64)
    core = draw.random(8000) < 0.8
    scores = np.where(core, -5 + 0.005 * (draw.normal(size=8000) + y), 3 * draw.normal(size=8000) + y)
    assert_exact(scores, y)
    found, _ = counted_finer(scores, y)
    exact = scores.astype(np.float32)
    assert found["x_auroc"] == pytest.approx(roc_auc_score(y, exact), abs=1e-3)
    assert found["x_average_precision"] == pytest.approx(average_precision_score(y, exact), abs=1e-3)


def atoms(of: Numbers, rows: int, draw: np.random.Generator, *, uneven: bool) -> Numbers:
    """Scores of rows that take a few values alone."""
    weights = draw.pareto(1.0, size=len(of)) + 1.0 if uneven else np.ones(len(of))
    return draw.choice(of, size=rows, p=weights / weights.sum())


def nasty(y: NDArray[np.int64], draw: np.random.Generator) -> dict[str, Numbers]:
    n = len(y)
    normal, uniform = draw.normal(size=n) + y, draw.random(n)
    found = {
        "usual": 2 * normal,
        "rare": -4.6 + normal,
        "in a band": 40 * (1 + 1e-5 * normal),
        "as narrow as float32 can be": -5 * (1 + 1e-7 * normal),
        "tiny": 1e-20 * normal,
        "denormal": 3e-41 * normal,
        "huge": 1e30 * normal,
        "core and tails": np.where(uniform < 0.8, -5 + 5e-6 * normal, 3 * normal),
        "three cores": np.select([uniform < 0.3, uniform < 0.5], [-5 + 5e-6 * normal, 1e-12 * normal], 50 + normal),
        "of every size": np.exp(draw.uniform(-85, 85, size=n)) * np.where(uniform < 0.5, 1, -1),
        "infinite": np.select([uniform < 0.2, uniform < 0.5], [np.inf, -np.inf], normal),
        "all but one alike": np.r_[7.0, np.full(n - 1, -1.2345)],
        "constant": np.full(n, 1.2345),
        "nested around -5": -5 * (1 + 0.5 ** draw.geometric(0.2, size=n) * uniform),
        "nested around 0": 0.5 ** (4 * draw.geometric(0.2, size=n)) * normal,
    }
    for count in (10, 300, 700, 2000):
        values = {
            "usual": draw.normal(size=count),
            "denormal": 1e-39 * draw.normal(size=count),
            "of every size": np.exp(draw.uniform(-85, 85, size=count)) * draw.choice([-1, 1], size=count),
            "next to each other": -5 + 2.0**-21 * 3 * np.arange(count),
        }
        for name, of in values.items():
            found[f"{count} values, {name}"] = atoms(of, n, draw, uneven=False)
            found[f"{count} values, {name}, uneven"] = atoms(of, n, draw, uneven=True)
    return found


@pytest.mark.parametrize(
    ("rows", "positives"), [(2000, 1000), (2000, 20), (2000, 1), (2000, 1999), (20_000, 200), (100_000, 5000)]
)
def test_any_scores_are_exact_to_a_thousandth_after_a_few_counts(rows: int, positives: int) -> None:
    draw = np.random.default_rng(8)
    y = np.zeros(rows, dtype=np.int64)
    y[draw.choice(rows, positives, replace=False)] = 1
    for name, scores in nasty(y, draw).items():
        if rows < 100_000 or "values" not in name:
            assert_exact(scores, y)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(SCORES, st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=60).filter(
        lambda rows: any(negatives for _, negatives, _ in rows) and any(positives for _, _, positives in rows)
    )
)
def test_any_scores_with_ties_are_exact_to_a_thousandth(rows: list[tuple[float, int, int]]) -> None:
    scores = np.concatenate([np.full(negatives + positives, score) for score, negatives, positives in rows])
    y = np.concatenate([np.repeat([0, 1], [negatives, positives]) for _, negatives, positives in rows])
    assert_exact(scores, y)


def test_bins_are_asked_for_again_where_they_are_too_wide_and_nowhere_else() -> None:
    y = np.array([0, 1] * 2000)
    coarse = seen(np.where(y, -5.00001, -5.00002), y)
    finer = RANKING.refined(RANKING.sums(coarse), len(y))
    assert finer is not None
    held = finer.sums(coarse)[: finer.bins].nonzero().item()
    widths = finer.edges.diff()
    assert len(finer.edges) < 2**14 + 3  # the other bins have no rows, so that one of them on each side is enough
    assert int(widths[held - 1]) == 1
    assert 0 in finer.edges
    assert finer.refined(finer.sums(coarse), len(y)) is None
    apart = seen(np.where(y, 1.0, -1.0), y)
    assert RANKING.refined(RANKING.sums(apart), len(y)) is None
    assert RANKING.refined(torch.full((RANKING.count(2),), torch.nan, dtype=torch.float64), len(y)) is None


def test_what_sites_count_in_finer_bins_adds_up() -> None:
    draw = np.random.default_rng(2)
    y = (draw.random(900) < 0.1).astype(np.int64)
    scores = -5 + 1e-4 * (draw.normal(size=900) + y)
    finer = RANKING.refined(RANKING.sums(seen(scores, y)), len(y))
    assert finer is not None
    whole = finer.sums(seen(scores, y))
    assert torch.equal(sum((finer.sums(seen(scores[k::3], y[k::3])) for k in range(3)), torch.tensor(0.0)), whole)
    assert finer.flaw(whole, 900, 2) == ""
    assert finer.rows_by_class(finer.withheld(whole, 200)) == (900 - int(y.sum()), 0)


def test_counting_ends_after_eight_times_or_when_no_more_counts_come() -> None:
    class Never(Ranking):
        def refined(self, sums: torch.Tensor, rows: int) -> Never:
            return Never()

    rows, counts = seen(np.array([0.0, 1.0]), np.array([0, 1])), []

    def count(finer: object) -> torch.Tensor:
        counts.append(finer)
        return RANKING.sums(rows)

    metric, _ = count_finer(Never(), RANKING.sums(rows), 2, count)
    assert (len(counts), metric) == (MOST_COUNTS - 1, counts[-1])
    first, sums = Never(), RANKING.sums(rows)
    assert count_finer(first, sums, 2, lambda finer: None) == (first, sums)
    accuracy = Accuracy()
    assert count_finer(accuracy, sums, 2, count) == (accuracy, sums)


INFINITY = 0x7F800000


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ([1, 2], "0 among them"),
        ([0, 2, 1], "ascending"),
        ([0, 0], "no two alike"),
        ([0, INFINITY + 1], "keys of float32"),
        ([-(2**31), 0], "keys of float32"),
        ([], "from 1 to 131072 of them"),
        ([[0, 1]], r"of shape \(1, 2\)"),
        (range(MOST_EDGES + 1), "from 1 to 131072 of them"),
    ],
)  # fmt: skip
def test_edges_of_no_bins_are_refused(edges: object, words: str) -> None:
    with pytest.raises(FedmmError, match=words):
        RANKING.with_edges(torch.tensor(edges, dtype=torch.int32))
    with pytest.raises(FedmmError, match="edges must be int32"):
        RANKING.with_edges(torch.zeros(1))
    assert RANKING.with_edges(torch.tensor([-INFINITY, 0, INFINITY], dtype=torch.int32)).bins == 4


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
    assert RANKING.flaw(sums / 2, 3, 2) == "its sums are not valid row counts"
    assert RANKING.flaw(-sums, 3, 2) == "its sums are not valid row counts"


def test_a_class_with_too_few_rows_is_withheld() -> None:
    y = np.array([0] * 9 + [1] * 3)
    sums = RANKING.sums(seen(np.arange(12.0), y))
    assert RANKING.rows_by_class(sums) == (9, 3)
    kept = RANKING.withheld(sums, 5)
    assert RANKING.rows_by_class(kept) == (9, 0)
    assert float(kept.sum()) == float(sums.sum()) * 9 / 12
    assert torch.equal(RANKING.withheld(sums, 3), sums)
