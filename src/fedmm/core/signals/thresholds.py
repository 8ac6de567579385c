"""ROC and precision-recall curves of two classes and the areas under them, from the scores of all rows.

:mod:`fedmm.core.signals.ranking` computes the areas from histograms, which sites may send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmm.core.signals.groups import GroupCounts

_MOST_POINTS = 200


@dataclass(frozen=True)
class Curves:
    """Curves over the thresholds for the second of two classes, strictest first; at most 200 points each.

    roc: false and true positive rate. precision_recall: recall and precision wherever recall rises, and at the last
    threshold. thresholds: the probabilities of the latter.
    """

    roc: tuple[tuple[float, float], ...]
    precision_recall: tuple[tuple[float, float], ...]
    thresholds: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The distinct scores, highest first, and how many rows of each class have at least that score.

    scores: log odds, float64 ``[k]``; true: int64 ``[k]``, rows of class 1; false: int64 ``[k]``, rows of class 0.
    """

    scores: Tensor
    true: Tensor
    false: Tensor

    @classmethod
    def count(cls, y: Tensor, s: Tensor) -> Thresholds:
        """Count labels y, 0 or 1 ``[rows]`` and both present, by log odds s, float64 ``[rows]`` without NaN."""
        scores, place = s.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        true, false = (
            torch.bincount(place[y == label], minlength=len(scores)).flip(0).cumsum(dim=0) for label in (1, 0)
        )
        return cls(scores.flip(0), true, false)

    @property
    def positives(self) -> int:
        return int(self.true[-1])

    @property
    def negatives(self) -> int:
        return int(self.false[-1])

    @property
    def auroc(self) -> float:
        """How often a score of class 1 is above one of class 0, over all pairs; a tie counts half."""
        above = torch.cat([self.true.new_zeros(1), self.true[:-1]]) + self.true
        pairs = self.positives * self.negatives
        return int((above * self.false.diff(prepend=self.false.new_zeros(1))).sum()) / (2 * pairs)

    def partial_auroc(self, max_fpr: float) -> float:
        """Return the area under the ROC curve up to ``max_fpr``, in (0, 1], standardised (McClish, 1989).

        It is 1 for a perfect ranking and 1/2 for a random one. The curve is linear between thresholds.
        """
        start = self.false.new_zeros(1)
        x, y = (torch.cat([start, counts]).double() / counts[-1] for counts in (self.false, self.true))
        inside = int((x <= max_fpr).sum())
        x, y = x[: inside + 1], y[: inside + 1]
        if inside < len(x):
            share = (max_fpr - x[-2]) / (x[-1] - x[-2])
            y[-1] = y[-2] + share * (y[-1] - y[-2])
            x[-1] = max_fpr
        chance = max_fpr**2 / 2
        return (1.0 + (float(torch.trapezoid(y, x)) - chance) / (max_fpr - chance)) / 2

    @property
    def average_precision(self) -> float:
        """The sum over thresholds of precision times the increase in recall."""
        found = self.true.diff(prepend=self.true.new_zeros(1))
        return float((found * self._precision).sum()) / self.positives

    @property
    def _precision(self) -> Tensor:
        return self.true.double() / (self.true + self.false)

    def curves(self) -> Curves:
        """Return the ROC curve at its corners, and precision where recall rises and at the last threshold, thinned."""
        x, y = (torch.cat([counts.new_zeros(1), counts]) for counts in (self.false, self.true))
        dx, dy = x.diff(), y.diff()
        ends = torch.ones(1, dtype=torch.bool, device=x.device)
        corners = _thin_out(torch.cat([ends, dx[:-1] * dy[1:] != dx[1:] * dy[:-1], ends]))
        rising = dy > 0
        rising[-1] = True
        rises = _thin_out(rising)
        rates = x[corners].double() / self.negatives, y[corners].double() / self.positives
        found = self.true[rises].double() / self.positives, self._precision[rises]
        roc, precision_recall = (tuple(zip(*(part.tolist() for part in pair), strict=True)) for pair in (rates, found))
        return Curves(roc, precision_recall, tuple(self.scores[rises].sigmoid().tolist()))


def to_probability(log_odds: float | None) -> float | None:
    """The probability of these log odds; None of none."""
    return None if log_odds is None else float(torch.tensor(log_odds, dtype=torch.float64).sigmoid())


def _thin_out(kept: Tensor) -> Tensor:
    """Return the places of the true entries, int64: at most 200 of them, including the first and the last."""
    places = kept.nonzero().flatten()
    few = torch.linspace(0, len(places) - 1, min(len(places), _MOST_POINTS), dtype=torch.float64)
    return places[few.round().long().to(places.device)]


def count_groups(
    names: Sequence[str], place: Tensor, y: Tensor, predicted: Tensor, s: Tensor | None = None
) -> list[GroupCounts]:
    """Return the counts of each group that has rows, in the order of the names.

    place: int64 ``[rows]``, the position of each row's group in ``names``; y, predicted: classes ``[rows]``. s: for two
    classes, the scores of the second, float64 ``[rows]``; a group has an AUROC if it has both classes and no NaN score.
    """
    found = []
    for number, name in enumerate(names):
        own = place == number
        labels, right = y[own], y[own] == predicted[own]
        positive = int((labels == 1).sum()) if s is not None else 0
        both = s is not None and 0 < positive < len(labels) and not bool(s[own].isnan().any())
        auc = Thresholds.count(labels, s[own]).auroc if s is not None and both else None
        if len(labels):
            found.append(GroupCounts(name, len(labels), int(right.sum()), positive, auc))
    return found
