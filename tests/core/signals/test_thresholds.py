"""Curves over all thresholds against scikit-learn, thinned and with ties; groups of rows by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, roc_auc_score, roc_curve

from fedmm.core.signals.groups import GroupCounts, GroupedScores, worst_and_best
from fedmm.core.signals.intervals import auroc_interval, wilson
from fedmm.core.signals.thresholds import Thresholds, count_groups


@given(st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=2, max_size=60))
def test_areas_are_scikit_learns_with_any_ties(rows: list[tuple[bool, int]]) -> None:
    y, s = torch.tensor([int(label) for label, _ in rows]), torch.tensor([float(score) for _, score in rows]).double()
    assume(len(set(y.tolist())) == 2)
    found = Thresholds.count(y, s)
    assert found.auroc == pytest.approx(roc_auc_score(y.numpy(), s.numpy()), abs=1e-12)
    assert found.average_precision == pytest.approx(average_precision_score(y.numpy(), s.numpy()), abs=1e-12)
    for rate in (0.01, 0.1, 0.25, 1 / 3, 0.5, 1.0):
        expected = roc_auc_score(y.numpy(), s.numpy(), max_fpr=rate)
        assert found.partial_auroc(rate) == pytest.approx(expected, abs=1e-12)
    curves = found.curves()
    false, true = zip(*curves.roc, strict=True)
    assert auc(false, true) == pytest.approx(found.auroc, abs=1e-12)  # corners leave nothing out
    recall, precision = (np.array(each) for each in zip(*curves.precision_recall, strict=True))
    assert float((np.diff(recall, prepend=0.0) * precision).sum()) == pytest.approx(found.average_precision, abs=1e-12)


def test_a_rare_class_keeps_its_points_where_recall_rises() -> None:
    """Of 50,000 thresholds evenly thinned to 200, the first would be alone in its half of the curve."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(50_000) < 100).long()
    s = torch.randn(50_000, generator=generator, dtype=torch.float64) + 3.0 * y
    curves = Thresholds.count(y, s).curves()
    assert [round(recall, 9) for recall, _ in curves.precision_recall[:100]] == [k / 100 for k in range(1, 101)]
    assert curves.precision_recall[-1] == (1.0, 100 / 50_000)
    false, true, _ = roc_curve(y.numpy(), s.numpy())
    assert auc(*zip(*curves.roc, strict=True)) == pytest.approx(auc(false, true), abs=0.005)
    assert len(curves.roc) <= 200


def test_scores_that_are_all_tied_rank_by_chance() -> None:
    found = Thresholds.count(torch.tensor([0, 1, 1, 0, 0]), torch.zeros(5).double())
    assert (found.auroc, found.average_precision) == (0.5, 0.4)
    assert found.partial_auroc(0.1) == pytest.approx(0.5)
    assert found.curves().roc == ((0.0, 0.0), (1.0, 1.0))
    assert found.curves().precision_recall == ((1.0, 0.4),)


def test_groups_are_counted_and_those_without_rows_left_out() -> None:
    place, y, predicted = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([1, 0, 0, 1, 1]), torch.tensor([1, 1, 0, 1, 0])
    s = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0]).double()
    assert count_groups(["a", "b", "c"], place, y, predicted, s) == [
        GroupCounts("a", 3, 2, 1, 1.0), GroupCounts("c", 2, 1, 2, None),
    ]  # fmt: skip
    assert count_groups(["a", "b", "c"], place, y, predicted)[0] == GroupCounts("a", 3, 2)
    s[2] = torch.nan
    assert count_groups(["a", "b", "c"], place, y, predicted, s)[0] == GroupCounts("a", 3, 2, 1, None)


def test_groups_are_summarised_from_the_worst_on() -> None:
    found = GroupedScores.summarise("site", [GroupCounts("a", 4, 3, 2, 0.75), GroupCounts("b", 2, 1)])
    assert [group.name for group in found.groups] == ["b", "a"]
    assert found.groups[1].accuracy_interval == wilson(3, 4)
    assert found.groups[1].auc_interval == auroc_interval(0.75, 2, 2)
    assert (found.worst, found.mean_accuracy, found.spread_accuracy) == ("b", 0.625, 0.25)
    assert (found.worst_by_auc, found.mean_auc, found.spread_auc) == ("a", 0.75, 0.0)


def test_groups_with_few_rows_come_last_and_decide_nothing() -> None:
    counts = [
        GroupCounts("one row", 1, 0, 0, None), GroupCounts("a", 20, 15, 5, 0.7), GroupCounts("b", 30, 24, 9, 0.6),
        GroupCounts("nine", 9, 9, 3, 0.1), GroupCounts("no ill", 10, 10, 0, None),
    ]  # fmt: skip
    found = GroupedScores.summarise("site", counts)
    assert [group.name for group in found.groups] == ["a", "b", "no ill", "one row", "nine"]
    assert (found.worst, found.mean_accuracy, found.spread_accuracy) == ("a", pytest.approx(0.85), 0.25)
    assert (found.worst_by_auc, found.mean_auc, found.spread_auc) == ("b", pytest.approx(0.65), pytest.approx(0.1))
    assert found.few == ("one row", "nine")
    by_auc = found.ordered("auc")
    assert [group.name for group in by_auc.groups] == ["b", "a", "no ill", "nine", "one row"]
    assert by_auc == GroupedScores.summarise("site", counts, "auc")
    assert found.describe_few("site").startswith("sites with fewer than 10 rows come last and do not count")
    few = GroupedScores.summarise("site", [counts[0], counts[3]])
    assert (few.worst, few.spread_accuracy) == ("one row", 1.0)
    assert few.describe_few("site") == "all sites have fewer than 10 rows, so these scores are mostly chance"


def test_of_many_groups_those_with_few_rows_are_not_shown_as_worst_or_best() -> None:
    small = [GroupCounts(f"s{k}", 5, 0) for k in range(20)]
    large = [GroupCounts(f"l{k:02}", 50, k) for k in range(20)]
    shown = worst_and_best(GroupedScores.summarise("site", [*small, *large]).groups, 3, 2)
    assert [each if isinstance(each, int) else each.name for each in shown] == ["l00", "l01", "l02", 35, "l18", "l19"]
    shown = worst_and_best(GroupedScores.summarise("site", [*small, *large[:4]]).groups, 3, 2)
    assert [each if isinstance(each, int) else each.name for each in shown] == ["l00", "l01", "l02", "l03", 20]
