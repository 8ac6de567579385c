"""Measures of a classifier from sums over rows: known answers, and sums that add up."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedmm.core.measures import Accuracy, Entropy, Information, Measure, Risk

MEASURES: dict[str, Measure] = {m.__name__: m() for m in (Accuracy, Risk, Entropy, Information)}
each_measure = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)


def logits(probabilities: list[list[float]]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def value(measure: Measure, given: Tensor, y: list[int] | None = None) -> float:
    labels = torch.tensor(y or [0] * len(given))
    return float(measure.value(measure.sums(given, labels), len(given)))


def test_accuracy_counts_what_is_right() -> None:
    given = logits([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    assert value(Accuracy(), given, [0, 1, 1, 1]) == 0.75


def test_risk_is_the_mean_cross_entropy() -> None:
    given = logits([[0.5, 0.5], [0.25, 0.75]])
    assert value(Risk(), given, [0, 0]) == pytest.approx((math.log(2) + math.log(4)) / 2)


def test_entropy_of_a_fair_coin_is_log_2_and_of_a_sure_thing_0() -> None:
    assert value(Entropy(), logits([[0.5, 0.5]])) == pytest.approx(math.log(2))
    assert value(Entropy(), torch.tensor([[0.0, 1e4]])) == 0.0


def test_information_is_highest_where_predictions_are_sure_and_differ() -> None:
    # Sure and evenly spread: H(mean) = log 3, mean H = 0. Sure of one class, or unsure in each row: nothing.
    sure = 1e4 * torch.eye(3)
    assert value(Information(), sure) == pytest.approx(math.log(3))
    assert value(Information(), sure[:1].expand(5, 3)) == 0.0
    assert value(Information(), torch.zeros(5, 3)) == pytest.approx(0.0, abs=1e-12)


def test_information_is_the_entropy_of_the_mean_less_the_mean_entropy() -> None:
    given = logits([[0.9, 0.1], [0.3, 0.7]])

    def entropy(p: float) -> float:
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    expected = entropy(0.6) - (entropy(0.9) + entropy(0.3)) / 2
    assert value(Information(), given) == pytest.approx(expected)


@each_measure
def test_sums_of_parts_are_the_sums_of_the_whole(measure: Measure) -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(12, 4, generator=generator)
    y = torch.randint(0, 4, (12,), generator=generator)
    parts = [measure.sums(given[p], y[p]) for p in (slice(0, 5), slice(5, 12))]
    torch.testing.assert_close(parts[0] + parts[1], measure.sums(given, y))


@each_measure
def test_leading_axes_are_measured_one_by_one(measure: Measure) -> None:
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(2, 3, 6, 4, generator=generator)
    y = torch.randint(0, 4, (2, 3, 6), generator=generator)
    together = measure.value(measure.sums(given, y), 6)
    assert together.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(together[i, j], measure.value(measure.sums(given[i, j], y[i, j]), 6))
