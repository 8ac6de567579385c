"""Score predictions on labelled rows, with intervals: overall, by class, over thresholds, and for calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.signals.groups import By, GroupedScores
from fedmm.core.signals.intervals import Interval, auroc_interval, average_precision_interval, mean_interval, wilson
from fedmm.core.signals.thresholds import Curves, Thresholds, count_groups
from fedmm.core.validation import at_least, rate

BINS = 15
"""The default number of bins; they have equal width, by the probability of the predicted class."""


@dataclass(frozen=True)
class ClassScores:
    """The scores of a class: precision is None if it was never predicted, recall if it has no rows, F1 if both."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int


@dataclass(frozen=True)
class Bin:
    """Predictions whose probability lies in (low, high]: confidence, the mean probability, and accuracy."""

    low: float
    high: float
    rows: int
    confidence: float | None
    accuracy: float | None

    @property
    def gap(self) -> float:
        """The difference of confidence and accuracy; 0 if there are no rows."""
        return 0.0 if self.confidence is None or self.accuracy is None else abs(self.confidence - self.accuracy)


@dataclass(frozen=True)
class Scores:
    """The scores of predictions on labelled rows.

    majority: the accuracy of always predicting the most frequent class. balanced_accuracy: the mean recall over the
    classes that have rows. auc: the area under the ROC curve of the second of two classes; average_precision, curves:
    of the same class; None for more classes or if one has no rows. intervals: 95 % intervals by the name of the score.
    partial_auc: the standardised partial area up to the false positive rate max_fpr, if requested.
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
    max_fpr: float | None = None
    partial_auc: float | None = None

    def table(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self)


def compute_scores(
    y: Tensor,
    logarithms: Tensor,
    class_names: Sequence[str],
    bins: int = BINS,
    predicted: Tensor | None = None,
    max_fpr: float | None = None,
) -> Scores:
    """Compare labels, int64 ``[rows]``, with the logarithms of probabilities, ``[rows, classes]``.

    predicted: the classes, int64 ``[rows]``; the likeliest by default. max_fpr: in (0, 1]; also measure the partial
    area under the ROC curve up to this false positive rate, which needs rows of both of two classes.
    """
    from sklearn.metrics import (  # noqa: PLC0415 - slow to import
        accuracy_score,
        confusion_matrix,
        precision_recall_fscore_support,
    )

    at_least("--bins", bins, 1)
    if max_fpr is not None:
        rate("--max-fpr", max_fpr)
    require(len(y) > 0, "there are no labelled rows to evaluate on")
    labels, logs = y.cpu().numpy(), logarithms.cpu().double().numpy()
    unscored = int(np.isnan(logs).any(axis=1).sum())
    require(not unscored, f"the model's scores of {unscored} of {len(logs)} rows are not numbers (NaN)")
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
    require(both or max_fpr is None, "--max-fpr needs a model of two classes and labelled rows of both")
    ranked = Thresholds.count(torch.from_numpy(labels), torch.from_numpy(odds)) if both else None
    auc, average = (None, None) if ranked is None else (ranked.auroc, ranked.average_precision)
    intervals = {
        "accuracy": wilson(int(hits.sum()), len(labels)),
        "balanced_accuracy": mean_interval([(int(hits[k]), int(support[k])) for k in every if support[k]]),
    }
    if auc is not None and average is not None:
        intervals["auc"] = auroc_interval(auc, int(support[1]), int(support[0]))
        intervals["average_precision"] = average_precision_interval(average, int(support[1]))
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
        ece=sum(bin_.rows * bin_.gap for bin_ in table) / len(labels),
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
        curves=None if ranked is None else ranked.curves(),
        max_fpr=max_fpr,
        partial_auc=None if ranked is None or max_fpr is None else ranked.partial_auroc(max_fpr),
    )


def compute_groups(
    column: str,
    groups: Sequence[str],
    y: Tensor,
    logarithms: Tensor,
    predicted: Tensor,
    classes: int,
    by: By = "accuracy",
) -> GroupedScores:
    """Score each group of rows, worst by ``by`` first; the other arguments are those of :func:`compute_scores`."""
    names = sorted(set(groups))
    number = {name: place for place, name in enumerate(names)}
    place = torch.tensor([number[name] for name in groups])
    logs = logarithms.cpu().double()
    odds = logs[:, 1] - logs[:, 0] if classes == 2 else None
    return GroupedScores.summarise(column, count_groups(names, place, y.cpu(), predicted.cpu(), odds), by)


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
