"""Scores of groups of rows, such as the rows of each site, from counts; does not need torch, so reports can use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeVar

from fedmm.core.signals.intervals import Interval, auroc_interval, wilson

EVALUATION = "fedmm-evaluation-1"
"""The format of the files written by ``fedmm evaluate --out``, which hold scores of groups for reports."""
FEW_ROWS = 10
"""Scores of groups with fewer rows are mostly chance."""
WORST, BEST = 10, 5
"""How many of the worst and the best groups are shown if there are many."""
Each = TypeVar("Each")


@dataclass(frozen=True)
class GroupScores:
    """One group of rows: its counts, its accuracy and AUROC (None if a class is missing), with 95 % intervals."""

    name: str
    rows: int
    hits: int
    positive: int
    accuracy: float
    accuracy_interval: Interval
    auc: float | None
    auc_interval: Interval | None


class GroupCounts(NamedTuple):
    """The counts of one group: its rows, correct predictions and rows of the second class, and its AUROC if known."""

    name: str
    rows: int
    hits: int
    positive: int = 0
    auc: float | None = None

    def scores(self) -> GroupScores:
        """Return the scores with intervals; needs at least one row."""
        interval = None if self.auc is None else auroc_interval(self.auc, self.positive, self.rows - self.positive)
        accuracy = self.hits / self.rows
        return GroupScores(*self[:4], accuracy, wilson(self.hits, self.rows), self.auc, interval)


@dataclass(frozen=True)
class GroupedScores:
    """Scores by group, lowest accuracy first, with their mean and spread (largest minus smallest) over groups.

    For two classes also by AUROC, over the groups that have both.
    """

    column: str
    groups: tuple[GroupScores, ...]
    worst: str
    mean_accuracy: float
    spread_accuracy: float
    worst_by_auc: str | None
    mean_auc: float | None
    spread_auc: float | None

    @classmethod
    def summarise(cls, column: str, groups: Iterable[GroupCounts]) -> GroupedScores:
        """Summarise the counts of at least one group; column: what the rows are grouped by."""
        found = sorted((group.scores() for group in groups), key=lambda group: (group.accuracy, group.name))
        accuracies = [group.accuracy for group in found]
        ranked = {group.name: group.auc for group in found if group.auc is not None}
        return cls(
            column,
            tuple(found),
            found[0].name,
            fmean(accuracies),
            max(accuracies) - min(accuracies),
            min(ranked, key=lambda name: ranked[name]) if ranked else None,
            fmean(ranked.values()) if ranked else None,
            max(ranked.values()) - min(ranked.values()) if ranked else None,
        )


def worst_and_best(groups: Sequence[Each], worst: int = WORST, best: int = BEST) -> list[Each | int]:
    """Return all groups or, if there are many, the worst, the number of those left out, and the best."""
    if len(groups) <= worst + best + 1:
        return list(groups)
    return [*groups[:worst], len(groups) - worst - best, *groups[-best:]]
