"""Scores of groups of rows, such as the rows of each site, from counts; without torch, for reports too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeVar

from fedmm.core.signals.intervals import Interval, auroc_interval, wilson

EVALUATION = "fedmm-evaluation-1"
"""The format of the files of ``fedmm evaluate --out``, which hold the scores of groups for reports."""
FEW_ROWS = 10
"""A group with fewer rows has scores that are mostly chance."""
WORST, BEST = 10, 5
"""How many groups are shown of many."""
Each = TypeVar("Each")


@dataclass(frozen=True)
class GroupScores:
    """One group of rows: what was counted, its accuracy and AUROC (None if a class is missing), 95 % intervals."""

    name: str
    rows: int
    hits: int
    positive: int
    accuracy: float
    accuracy_interval: Interval
    auc: float | None
    auc_interval: Interval | None


class GroupCounts(NamedTuple):
    """What is counted of one group: its rows, those predicted right, those of the second class, and AUROC if known."""

    name: str
    rows: int
    hits: int
    positive: int = 0
    auc: float | None = None

    def scores(self) -> GroupScores:
        """With intervals; of at least one row."""
        interval = None if self.auc is None else auroc_interval(self.auc, self.positive, self.rows - self.positive)
        accuracy = self.hits / self.rows
        return GroupScores(*self[:4], accuracy, wilson(self.hits, self.rows), self.auc, interval)


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

    @classmethod
    def summarise(cls, column: str, groups: Iterable[GroupCounts]) -> GroupedScores:
        """At least one group; column: by what the rows are grouped."""
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
    """All of them or, of many, the worst and the best and between them how many are left out."""
    if len(groups) <= worst + best + 1:
        return list(groups)
    return [*groups[:worst], len(groups) - worst - best, *groups[-best:]]
