"""Scores of predictions on labelled rows, with intervals: as a whole, by class, over thresholds, and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.validation import at_least

Interval = tuple[float, float]
_Z = 1.959963984540054
"""Of a 95 % interval."""
_MOST_POINTS = 200
BINS = 15
"""Of equal width, by the probability of the predicted class, unless another number is asked for."""


@dataclass(frozen=True)
class ClassScores:
    """One class: precision is None where it was never predicted, recall where it has no rows, F1 where both."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int


@dataclass(frozen=True)
class Bin:
    """Predictions whose probability lies in (low, high]: their mean probability, and the share that is right."""

    low: float
    high: float
    rows: int
    confidence: float | None
    accuracy: float | None

    @property
    def gap(self) -> float:
        """Between the two; 0 where there are no rows."""
        return 0.0 if self.confidence is None or self.accuracy is None else abs(self.confidence - self.accuracy)


@dataclass(frozen=True)
class Curves:
    """Over the thresholds for the second of two classes, from the strictest on; at most 200 points each.

    roc: false and true positive rate. precision_recall: recall and precision. thresholds: the log odds of the latter.
    """

    roc: tuple[tuple[float, float], ...]
    precision_recall: tuple[tuple[float, float], ...]
    thresholds: tuple[float, ...]


@dataclass(frozen=True)
class Scores:
    """All that is measured of predictions on labelled rows.

    majority: the accuracy of always predicting the most frequent class. balanced_accuracy: the mean recall over the
    classes that have rows. auc: the area under the ROC curve of the second of two classes, average_precision and curves
    of the same; None for more classes or where one has no rows. intervals: of 95 %, by the name of what they are of.
    macro_f1: the mean F1 over the classes that have rows or predictions. ece: the mean gap between probability and
    accuracy over the bins, weighted by their rows. brier: the mean over rows of sum_k (p_k - [y = k])^2, from 0 to 2.
    nll: the mean -log p_y, in nats. confusion: rows by class (first) and predicted class.
    """

    rows: int
    accuracy: float
    majority: float
    majority_class: str
    balanced_accuracy: float
    auc: float | None
    average_precision: float | None
    intervals: dict[str, Interval]
    macro_f1: float
    ece: float
    brier: float
    nll: float
    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[int, ...], ...]
    bins: tuple[Bin, ...]
    curves: Curves | None

    def table(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self)


def compute_scores(
    y: Tensor, logarithms: Tensor, class_names: Sequence[str], bins: int = BINS, predicted: Tensor | None = None
) -> Scores:
    """Compare labels int64 ``[rows]`` with the logarithms of probabilities, ``[rows, classes]``.

    predicted: the classes, int64 ``[rows]``; the likeliest by default.
    """
    from sklearn.metrics import (  # noqa: PLC0415 - slow to import
        accuracy_score,
        average_precision_score,
        confusion_matrix,
        precision_recall_fscore_support,
    )

    at_least("--bins", bins, 1)
    require(len(y) > 0, "there are no labelled rows to evaluate on")
    labels, logs = y.cpu().numpy(), logarithms.cpu().double().numpy()
    probabilities = np.exp(logs)
    guesses = logs.argmax(axis=1) if predicted is None else predicted.cpu().numpy()
    every = range(len(class_names))
    precision, recall, f1, support = precision_recall_fscore_support(labels, guesses, labels=every, zero_division=0)
    counts: NDArray[np.int64] = confusion_matrix(labels, guesses, labels=every)
    called = counts.sum(axis=0)
    known, seen = support > 0, (support > 0) | (called > 0)
    confidence, right = probabilities[np.arange(len(labels)), guesses], guesses == labels
    table = _bins(confidence, right, bins)
    truth = np.eye(len(class_names))[labels]
    hits = np.diag(counts)
    odds = logs[:, -1] - logs[:, 0]
    both = len(class_names) == 2 and bool(known.all())
    auc = area_under_roc(odds[labels == 1], odds[labels == 0]) if both else None
    average = float(average_precision_score(labels, odds)) if both else None
    intervals = {
        "accuracy": wilson(int(hits.sum()), len(labels)),
        "balanced_accuracy": _mean_interval([(int(hits[k]), int(support[k])) for k in every if support[k]]),
    }
    if auc is not None and average is not None:
        intervals["auc"] = _auc_interval(auc, int(support[1]), int(support[0]))
        intervals["average_precision"] = _average_precision_interval(average, int(support[1]))
    return Scores(
        rows=len(labels),
        accuracy=float(accuracy_score(labels, guesses)),
        majority=float(support.max() / len(labels)),
        majority_class=class_names[int(support.argmax())],
        balanced_accuracy=float(recall[known].mean()),
        auc=auc,
        average_precision=average,
        intervals=intervals,
        macro_f1=float(f1[seen].mean()),
        ece=sum(each.rows * each.gap for each in table) / len(labels),
        brier=float(np.square(probabilities - truth).sum(axis=1).mean()),
        nll=float(-logs[np.arange(len(labels)), labels].mean()),
        classes=tuple(
            ClassScores(
                name=name,
                precision=float(precision[k]) if called[k] else None,
                recall=float(recall[k]) if support[k] else None,
                f1=float(f1[k]) if seen[k] else None,
                support=int(support[k]),
                predicted=int(called[k]),
            )
            for k, name in enumerate(class_names)
        ),
        confusion=tuple(tuple(map(int, row)) for row in counts),
        bins=table,
        curves=_curves(labels, odds) if both else None,
    )


@dataclass(frozen=True)
class GroupScores:
    """One group of rows: how many, its accuracy and AUROC (None where a class is missing), with 95 % intervals."""

    name: str
    rows: int
    accuracy: float
    accuracy_interval: Interval
    auc: float | None
    auc_interval: Interval | None


@dataclass(frozen=True)
class GroupedScores:
    """Scores by group, from the lowest accuracy on; mean and spread, the largest less the smallest, over groups.

    Of two classes also by AUROC, over the groups that have both.
    """

    column: str
    groups: tuple[GroupScores, ...]
    worst: str
    mean_accuracy: float
    spread_accuracy: float
    worst_by_auc: str | None
    mean_auc: float | None
    spread_auc: float | None


def compute_groups(
    column: str, groups: Sequence[str], y: Tensor, logarithms: Tensor, predicted: Tensor, classes: int
) -> GroupedScores:
    """The scores of each group of rows; the other arguments are those of :func:`compute_scores`."""
    labels, guesses = y.cpu().numpy(), predicted.cpu().numpy()
    logs = logarithms.cpu().double().numpy()
    odds, names = logs[:, -1] - logs[:, 0], np.asarray(groups)
    found = []
    for name in sorted(set(groups)):
        own = names == name
        hits, rows = int((labels[own] == guesses[own]).sum()), int(own.sum())
        of_class = [odds[own & (labels == label)] for label in (1, 0)]
        both = classes == 2 and all(map(len, of_class))
        auc = area_under_roc(*of_class) if both else None
        interval = None if auc is None else _auc_interval(auc, len(of_class[0]), len(of_class[1]))
        found.append(GroupScores(name, rows, hits / rows, wilson(hits, rows), auc, interval))
    found.sort(key=lambda group: (group.accuracy, group.name))
    accuracies = [group.accuracy for group in found]
    ranked = {group.name: group.auc for group in found if group.auc is not None}
    return GroupedScores(
        column,
        tuple(found),
        found[0].name,
        float(np.mean(accuracies)),
        max(accuracies) - min(accuracies),
        min(ranked, key=lambda name: ranked[name]) if ranked else None,
        float(np.mean(list(ranked.values()))) if ranked else None,
        max(ranked.values()) - min(ranked.values()) if ranked else None,
    )


def _curves(labels: NDArray[np.int64], odds: NDArray[np.float64]) -> Curves:
    from sklearn.metrics import precision_recall_curve, roc_curve  # noqa: PLC0415 - slow to import

    false, true, _ = roc_curve(labels, odds)
    precision, recall, thresholds = (each[::-1] for each in precision_recall_curve(labels, odds))
    points = _thinned(len(thresholds))
    return Curves(
        tuple((float(false[k]), float(true[k])) for k in _thinned(len(false))),
        tuple((float(recall[k + 1]), float(precision[k + 1])) for k in points),  # the first has no threshold
        tuple(float(thresholds[k]) for k in points),
    )


def _thinned(points: int) -> list[int]:
    """At most so many of some points, with the first and the last."""
    return sorted({round(k) for k in np.linspace(0, points - 1, min(points, _MOST_POINTS)).tolist()})


def _bins(confidence: NDArray[np.float64], right: NDArray[np.bool_], count: int) -> tuple[Bin, ...]:
    edges = np.linspace(0.0, 1.0, count + 1)
    place = np.clip(np.ceil(confidence * count).astype(np.int64) - 1, 0, count - 1)
    found = []
    for number in range(count):
        inside = place == number
        rows = int(inside.sum())
        found.append(
            Bin(
                float(edges[number]),
                float(edges[number + 1]),
                rows,
                float(confidence[inside].mean()) if rows else None,
                float(right[inside].mean()) if rows else None,
            )
        )
    return tuple(found)


def wilson(hits: int, rows: int) -> Interval:
    """The 95 % interval of a share, by the score test (Wilson 1927)."""
    share, slack = hits / rows, _Z * _Z / rows
    middle = (share + slack / 2) / (1 + slack)
    half = (slack * share * (1 - share) + slack * slack / 4) ** 0.5 / (1 + slack)
    return (0.0 if not hits else middle - half), (1.0 if hits == rows else middle + half)


def _mean_interval(counts: Sequence[tuple[int, int]]) -> Interval:
    """The 95 % interval of a mean of independent shares, from Wilson's of each (Zou and Donner 2008)."""
    shares = [hits / rows for hits, rows in counts]
    single = [wilson(hits, rows) for hits, rows in counts]
    mean, classes = sum(shares) / len(shares), len(shares)
    below = sum((share - low) ** 2 for share, (low, _) in zip(shares, single, strict=True)) ** 0.5 / classes
    above = sum((high - share) ** 2 for share, (_, high) in zip(shares, single, strict=True)) ** 0.5 / classes
    return max(0.0, mean - below), min(1.0, mean + above)


def area_under_roc(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """How often a score of the one class is above one of the other, over all pairs; a tie counts half."""
    order = np.sort(negative)
    below, upto = (np.searchsorted(order, positive, side=side) for side in ("left", "right"))
    return float((below + upto).sum(dtype=np.int64)) / (2 * len(positive) * len(negative))


def _auc_interval(auc: float, positive: int, negative: int) -> Interval:
    """The 95 % interval of an area under the ROC curve, by the score test (Newcombe 2006, method 5).

    Its width at 0 and 1 is not 0, as DeLong's or the bootstrap's would be.
    """
    extra = (positive + negative) / 2 - 1

    def inside(value: float) -> bool:
        shape = 1 + extra * (1 - value) / (2 - value) + extra * value / (1 + value)
        return (auc - value) ** 2 <= _Z * _Z * value * (1 - value) * shape / (positive * negative)

    def bound(within: float, outside: float) -> float:
        for _ in range(60):
            middle = (within + outside) / 2
            within, outside = (middle, outside) if inside(middle) else (within, middle)
        return within

    return (0.0 if auc == 0 else bound(auc, 0.0)), (1.0 if auc == 1 else bound(auc, 1.0))


def _average_precision_interval(average: float, positive: int) -> Interval:
    """The 95 % interval of an average precision, on the scale of log odds (Boyd, Eng and Page 2013).

    Where that is not defined, at 1, Wilson's of as many hits.
    """
    if average >= 1.0:
        return wilson(positive, positive)
    middle, half = np.log(average / (1 - average)), _Z / (positive * average * (1 - average)) ** 0.5
    low, high = (float(1 / (1 + np.exp(-each))) for each in (middle - half, middle + half))
    return low, high
