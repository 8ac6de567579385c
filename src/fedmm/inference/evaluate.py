"""How good a run's model is on labelled rows: as a whole, by class, and whether its probabilities can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.validation import at_least
from fedmm.data.domains import RowStream
from fedmm.data.labels import UNKNOWN, UNLABELLED
from fedmm.inference.load_run import FinishedRun
from fedmm.inference.predict import OWN_ROWS, TEST, open_rows, own_rows, predict_rows
from fedmm.runs.evidence import count_trained_test_rows

EVALUATION = "fedmm-evaluation-1"
_SHOWN = 5
Interval = tuple[float, float]
_Z = 1.959963984540054
"""Of a 95 % interval."""
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
class Scores:
    """All that is measured of predictions on labelled rows.

    majority: the accuracy of always predicting the most frequent class. balanced_accuracy: the mean recall over the
    classes that have rows. auc: the area under the ROC curve of the second of two classes, None for more classes or
    where one has no rows. intervals: of 95 %, by the name of what they are of. macro_f1: the mean F1 over the classes
    that have rows or predictions. ece: the mean gap between probability and accuracy over the bins, weighted by their
    rows. brier: the mean over rows of sum_k (p_k - [y = k])^2, from 0 to 2. nll: the mean -log p_y, in nats.
    confusion: rows by class (first) and predicted class.
    """

    rows: int
    accuracy: float
    majority: float
    majority_class: str
    balanced_accuracy: float
    auc: float | None
    intervals: dict[str, Interval]
    macro_f1: float
    ece: float
    brier: float
    nll: float
    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[int, ...], ...]
    bins: tuple[Bin, ...]

    def table(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Evaluation:
    """Scores on the rows whose class is known to the model.

    left_out: how many others there are; unknown: those of them with a label, which is none of the model's classes;
    strange: these labels. trained_on: how many of the rows were trained on, without their labels.
    """

    run: FinishedRun
    data: str
    scores: Scores
    left_out: int
    unknown: int
    strange: tuple[str, ...]
    trained_on: int = 0

    def table(self) -> dict[str, Any]:
        """Everything as plain values, for JSON and for the picture.

        ``accuracy`` is that of the rows whose class the model knows, ``accuracy_of_all`` that of all labelled rows: a
        class that the model does not know is always wrong.
        """
        labelled, hits = self.scores.rows + self.unknown, sum(row[k] for k, row in enumerate(self.scores.confusion))
        return {
            "format": EVALUATION,
            "run": str(self.run.folder),
            "label": self.run.experiment.label,
            "checkpoint": self.run.checkpoint,
            "round": self.run.round,
            "chosen_by": self.run.chosen_by,
            "data": self.data,
            "left_out": self.left_out,
            "unknown_labels": list(self.strange),
            "unknown_rows": self.unknown,
            "absent_classes": [each.name for each in self.scores.classes if not each.support],
            "labelled_rows": labelled,
            "accuracy_of_all": hits / labelled,
            "accuracy_of_all_interval": wilson(hits, labelled),
            "trained_on": self.trained_on,
            **self.scores.table(),
        }


def rows_named(run: FinishedRun, data: str, *, skip_bad: bool = False) -> RowStream:
    """The rows of a file or folder, or of the run's own data set where ``data`` is one of the words for them."""
    return own_rows(run, data) if data in OWN_ROWS else open_rows(run, Path(data), skip_bad=skip_bad)


def evaluate(
    run: FinishedRun,
    data: str,
    rows: RowStream,
    *,
    bins: int = BINS,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Evaluation:
    """Score the model on rows with labels; ``on_rows`` is told how many more were predicted."""
    labels, logarithms, strange, left_out, unknown = [], [], set[str](), 0, 0
    for part in rows.parts:
        found = predict_rows(run, part)
        y = torch.full((len(part.x),), UNLABELLED) if found.y is None else found.y.cpu()
        known = y >= 0
        labels.append(y[known])
        logarithms.append(found.logarithms[known])
        strange |= set(found.strange)
        left_out += int((~known).sum())
        unknown += int((y == UNKNOWN).sum())
        on_rows(len(part.x))
    y = torch.cat(labels)
    odd = f", only unknown ones such as {', '.join(sorted(strange)[:_SHOWN])}" if strange else ""
    require(
        len(y) > 0,
        f"{data} has no labels of the model's classes ({', '.join(run.class_names[:_SHOWN])}, ...){odd}; evaluate "
        "labelled data, or use `fedmm predict`",
    )
    return Evaluation(
        run,
        data,
        compute_scores(y, torch.cat(logarithms), run.class_names, bins),
        left_out,
        unknown,
        tuple(sorted(strange)),
        _trained_on(run) if data == TEST else 0,
    )


def _trained_on(run: FinishedRun) -> int:
    """How many of the run's own test rows of the target it trained on, without their labels."""
    if not run.experiment.objective.adapts:
        return 0
    return count_trained_test_rows(run.experiment.data.load())


# Scores ---------------------------------------------------------------------------------------------------------------


def compute_scores(y: Tensor, logarithms: Tensor, class_names: Sequence[str], bins: int = BINS) -> Scores:
    """Compare labels int64 ``[rows]`` with the logarithms of probabilities, ``[rows, classes]``."""
    from sklearn.metrics import (  # noqa: PLC0415 - slow to import
        accuracy_score,
        confusion_matrix,
        precision_recall_fscore_support,
    )

    at_least("--bins", bins, 1)
    require(len(y) > 0, "there are no labelled rows to evaluate on")
    labels, logs = y.cpu().numpy(), logarithms.cpu().double().numpy()
    probabilities, guesses = np.exp(logs), logs.argmax(axis=1)
    every = range(len(class_names))
    precision, recall, f1, support = precision_recall_fscore_support(labels, guesses, labels=every, zero_division=0)
    counts: NDArray[np.int64] = confusion_matrix(labels, guesses, labels=every)
    called = counts.sum(axis=0)
    known, seen = support > 0, (support > 0) | (called > 0)
    confidence, right = probabilities.max(axis=1), guesses == labels
    table = _bins(confidence, right, bins)
    truth = np.eye(len(class_names))[labels]
    hits = np.diag(counts)
    odds = logs[:, -1] - logs[:, 0]
    both = len(class_names) == 2 and bool(known.all())
    auc = area_under_roc(odds[labels == 1], odds[labels == 0]) if both else None
    intervals = {
        "accuracy": wilson(int(hits.sum()), len(labels)),
        "balanced_accuracy": _mean_interval([(int(hits[k]), int(support[k])) for k in every if support[k]]),
    }
    if auc is not None:
        intervals["auc"] = _auc_interval(auc, int(support[1]), int(support[0]))
    return Scores(
        rows=len(labels),
        accuracy=float(accuracy_score(labels, guesses)),
        majority=float(support.max() / len(labels)),
        majority_class=class_names[int(support.argmax())],
        balanced_accuracy=float(recall[known].mean()),
        auc=auc,
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
    )


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
