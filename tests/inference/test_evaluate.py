"""Scores of predictions whose right answers can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedmm import FedmmError
from fedmm.core.signals.intervals import wilson
from fedmm.inference.scores import compute_groups, compute_scores


def test_four_rows_of_two_classes() -> None:
    # Classes 0 0 1 1, predicted 0 1 1 1 with probability 0.9, 0.6, 0.8, 0.7: one row of class 0 is wrong.
    p = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.3, 0.7]], dtype=torch.float64)
    found = compute_scores(torch.tensor([0, 0, 1, 1]), p.log(), ["a", "b"], bins=2)
    assert found.rows == 4
    assert found.accuracy == pytest.approx(3 / 4)
    assert found.balanced_accuracy == pytest.approx((1 / 2 + 1) / 2)
    assert found.confusion == ((1, 1), (0, 2))
    first, second = found.classes
    assert (first.precision, first.recall, first.support, first.predicted) == (1.0, 0.5, 2, 1)
    assert second.precision == pytest.approx(2 / 3)
    assert found.macro_f1 == pytest.approx((2 / 3 + 4 / 5) / 2)
    # All four lie in (0.5, 1]: mean probability 0.75, three of four right, and so no gap.
    assert [each.rows for each in found.bins] == [0, 4]
    assert found.bins[1].confidence == pytest.approx(0.75)
    assert found.ece == pytest.approx(0.0)
    # Squared distances: 2 * 0.1^2, 2 * 0.6^2, 2 * 0.2^2, 2 * 0.3^2.
    assert found.brier == pytest.approx(2 * (0.01 + 0.36 + 0.04 + 0.09) / 4)
    assert found.nll == pytest.approx(-(math.log(0.9) + math.log(0.4) + math.log(0.8) + math.log(0.7)) / 4)


def test_bins_hold_their_upper_edge_and_a_gap_is_weighted_by_its_rows() -> None:
    # With 4 bins, 0.5 lies in (0.25, 0.5] and 1.0 in (0.75, 1]: gaps |0.5 - 0| and |1 - 1|, one row each.
    p = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    found = compute_scores(torch.tensor([1, 1]), p.log(), ["a", "b"], bins=4)
    assert [each.rows for each in found.bins] == [0, 1, 0, 1]
    assert found.ece == pytest.approx(0.25)


def test_a_class_without_rows_or_predictions_does_not_count() -> None:
    p = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64)
    found = compute_scores(torch.tensor([0, 0]), p.log(), ["a", "b", "never"])
    assert found.balanced_accuracy == 0.5
    assert found.macro_f1 == pytest.approx((2 / 3 + 0) / 2)  # b was predicted, and is never right
    never = found.classes[2]
    assert (never.precision, never.recall, never.f1, never.support) == (None, None, None, 0)
    assert found.classes[1].recall is None


def test_a_row_that_was_thought_impossible_has_a_finite_loss() -> None:
    logits = torch.tensor([[200.0, 0.0]], dtype=torch.float64)
    assert compute_scores(torch.tensor([1]), logits.log_softmax(dim=1), ["a", "b"]).nll == pytest.approx(200.0)


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(FedmmError, match="no labelled rows"):
        compute_scores(torch.tensor([], dtype=torch.int64), torch.zeros(0, 2), ["a", "b"])
    with pytest.raises(FedmmError, match="--bins must be at least 1"):
        compute_scores(torch.tensor([0]), torch.zeros(1, 2), ["a", "b"], bins=0)
    with pytest.raises(FedmmError, match="--max-fpr needs a model of two classes"):
        compute_scores(torch.tensor([0, 1, 2]), torch.zeros(3, 3), ["a", "b", "c"], max_fpr=0.1)


def test_the_area_under_the_curve_is_sklearns_also_with_ties() -> None:
    from sklearn.metrics import roc_auc_score

    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (200,), generator=generator)
    p = ((torch.rand(200, generator=generator) + 0.3 * y) * 8).round() / 16 + 0.05  # few values: many ties
    found = compute_scores(y, torch.stack([1 - p, p], dim=1).log(), ["a", "b"])
    assert found.auc == pytest.approx(roc_auc_score(y.numpy(), p.numpy()), abs=1e-12)
    low, high = found.intervals["auc"]
    assert low < found.auc < high


def test_average_precision_and_the_curves_are_sklearns() -> None:
    from sklearn.metrics import auc, average_precision_score, precision_recall_curve

    generator = torch.Generator().manual_seed(1)
    y = (torch.rand(3000, generator=generator) < 0.1).long()
    s = torch.randn(3000, generator=generator, dtype=torch.float64) + 1.5 * y
    found = compute_scores(y, torch.stack([-s / 2, s / 2], dim=1).log_softmax(dim=1), ["well", "ill"])
    assert found.average_precision == pytest.approx(average_precision_score(y.numpy(), s.numpy()), abs=1e-12)
    low, high = found.intervals["average_precision"]
    assert low < found.average_precision < high
    assert found.curves is not None
    assert found.curves.roc[0] == (0.0, 0.0)
    assert found.curves.roc[-1] == (1.0, 1.0)
    assert len(found.curves.roc) <= 200
    false, true = zip(*found.curves.roc, strict=True)
    assert auc(false, true) == pytest.approx(found.auc, abs=0.01)
    precision, recall, thresholds = precision_recall_curve(y.numpy(), s.numpy())
    at = [1 / (1 + math.exp(-t)) for t in thresholds]  # of log odds, as probabilities
    known = {round(float(t), 9): (float(r), float(p)) for t, r, p in zip(at, recall, precision, strict=False)}
    assert len(found.curves.thresholds) == len(found.curves.precision_recall) == 200
    for threshold, point in zip(found.curves.thresholds, found.curves.precision_recall, strict=True):
        assert point == pytest.approx(known[round(threshold, 9)], abs=1e-12)


def test_there_is_no_area_under_the_curve_of_three_classes_or_of_one() -> None:
    p = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64)
    assert compute_scores(torch.tensor([0, 1]), p.log(), ["a", "b", "c"]).auc is None
    one = compute_scores(torch.tensor([0, 0]), p[:, :2].log_softmax(dim=1), ["a", "b"])
    assert (one.auc, one.average_precision, one.curves) == (None, None, None)
    assert "auc" not in one.intervals


def test_an_interval_of_a_share_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263 and 0 of 20.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((1 - 0.1611, 1.0), abs=1e-4)


def test_perfect_scores_on_few_rows_have_wide_intervals() -> None:
    p = torch.tensor([[0.9, 0.1]] * 5 + [[0.1, 0.9]] * 5, dtype=torch.float64)
    found = compute_scores(torch.tensor([0] * 5 + [1] * 5), p.log(), ["a", "b"])
    assert (found.accuracy, found.balanced_accuracy, found.auc) == (1.0, 1.0, 1.0)
    for low, high in found.intervals.values():
        assert low < 0.85
        assert high == 1.0


def test_the_majority_class_stands_beside_accuracy() -> None:
    p = torch.tensor([[0.9, 0.1]] * 10, dtype=torch.float64)
    found = compute_scores(torch.tensor([0] * 7 + [1] * 3), p.log(), ["well", "ill"])
    assert found.accuracy == found.majority == pytest.approx(0.7)
    assert found.majority_class == "well"
    assert found.auc == 0.5  # all are tied


def test_groups_come_from_the_worst_on_with_intervals_of_their_own() -> None:
    y = torch.tensor([0, 1, 0, 1, 0, 0, 1])
    p = torch.tensor([0.2, 0.9, 0.6, 0.4, 0.1, 0.3, 0.8], dtype=torch.float64)
    groups = ["b", "b", "a", "a", "c", "c", "b"]
    logs = torch.stack([1 - p, p], dim=1).log()
    found = compute_groups("bank", groups, y, logs, logs.argmax(dim=1), 2)
    assert [(each.name, each.rows, each.accuracy, each.auc) for each in found.groups] == [
        ("a", 2, 0.0, 0.0), ("b", 3, 1.0, 1.0), ("c", 2, 1.0, None),
    ]  # fmt: skip
    assert found.groups[1].accuracy_interval == wilson(3, 3)
    assert (found.worst, found.worst_by_auc) == ("a", "a")
    assert (found.mean_accuracy, found.spread_accuracy) == (pytest.approx(2 / 3), 1.0)
    assert (found.mean_auc, found.spread_auc) == (0.5, 1.0)
    assert compute_groups("bank", groups, y, torch.zeros(7, 3), torch.zeros(7, dtype=torch.int64), 3).mean_auc is None
