"""Scores of groups of rows, such as the rows of each site, from counts; does not need torch, so reports can use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, NamedTuple

from fedmm.core.signals.intervals import Interval, auroc_interval, wilson

EVALUATION = "fedmm-evaluation-1"
"""The format of the files written by ``fedmm evaluate --out``, which hold scores of groups for reports."""
FEW_ROWS = 10
"""Scores of groups with fewer rows are mostly chance."""
WORST, BEST = 10, 5
"""How many of the worst and the best groups are shown if there are many."""
By = Literal["accuracy", "auc"]


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
    """Scores by group, worst first, with their mean and spread (largest minus smallest) over groups.

    by: the score that orders the groups. For two classes also by AUROC, over the groups that have both.
    few: the names of groups with fewer than ``FEW_ROWS`` rows. They come last and do not count in worst, mean and
    spread, unless all groups are that small.
    """

    column: str
    groups: tuple[GroupScores, ...]
    worst: str
    mean_accuracy: float
    spread_accuracy: float
    worst_by_auc: str | None
    mean_auc: float | None
    spread_auc: float | None
    few: tuple[str, ...] = ()
    by: By = "accuracy"

    @classmethod
    def summarise(cls, column: str, groups: Iterable[GroupCounts], by: By = "accuracy") -> GroupedScores:
        """Summarise the counts of at least one group; column: what the rows are grouped by."""
        found = [group.scores() for group in groups]
        judged = with_enough_rows(found)
        accuracies = {group.name: group.accuracy for group in from_worst(judged)}
        areas = {group.name: group.auc for group in from_worst(judged, "auc") if group.auc is not None}
        return cls(
            column,
            tuple(from_worst(found, by)),
            next(iter(accuracies)),
            fmean(accuracies.values()),
            max(accuracies.values()) - min(accuracies.values()),
            next(iter(areas), None),
            fmean(areas.values()) if areas else None,
            max(areas.values()) - min(areas.values()) if areas else None,
            tuple(group.name for group in found if group.rows < FEW_ROWS),
            by,
        )

    def ordered(self, by: By) -> GroupedScores:
        """Return the same scores with the groups in another order."""
        return replace(self, by=by, groups=tuple(from_worst(self.groups, by)))

    def describe_few(self, noun: str) -> str:
        """Return a sentence on groups with few rows, empty if there are none; noun: what a group is called."""
        if not self.few:
            return ""
        if len(self.few) == len(self.groups):
            return f"all {noun}s have fewer than {FEW_ROWS} rows, so these scores are mostly chance"
        return (
            f"{noun}s with fewer than {FEW_ROWS} rows come last and do not count in worst, mean and spread, since "
            "their scores are mostly chance"
        )


def from_worst(groups: Iterable[GroupScores], by: By = "accuracy") -> list[GroupScores]:
    """Return the groups, worst first; those without the score and those with few rows come last."""
    known = [(group, group.accuracy if by == "accuracy" else group.auc) for group in groups]
    known.sort(key=lambda each: (each[0].rows < FEW_ROWS, each[1] is None, each[1] or 0.0, each[0].name))
    return [group for group, _ in known]


def with_enough_rows(groups: Sequence[GroupScores]) -> list[GroupScores]:
    """Return the groups whose scores are more than chance, or all if there are none."""
    return [group for group in groups if group.rows >= FEW_ROWS] or list(groups)


def worst_and_best(groups: Sequence[GroupScores], worst: int = WORST, best: int = BEST) -> list[GroupScores | int]:
    """Return all groups or, if there are many, the worst and the best with enough rows, and the number left out."""
    if len(groups) <= worst + best + 1:
        return list(groups)
    judged = with_enough_rows(groups)
    if len(judged) <= worst + best:
        return [*judged, len(groups) - len(judged)]
    return [*judged[:worst], len(groups) - worst - best, *judged[-best:]]
