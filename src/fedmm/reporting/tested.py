"""Scores of a run's test rows as it kept them: ranking and curves of two classes, and scores by site."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from fedmm.core.signals.groups import GroupCounts, GroupedScores
from fedmm.core.signals.intervals import Interval, auroc_interval, average_precision_interval
from fedmm.reporting.read import Array

SETS = ("target", "source")
"""The domains whose test rows are scored."""
AT_SITES = "validation"
SITE_ROWS = {**{name: f"{name} test rows" for name in SETS}, AT_SITES: "rows kept from training"}
"""The rows by which single sites are scored, in words; the last by the sites of a deployed run themselves."""
_MOST_ROWS = 1 << 53
"""Of a site; more is no count."""


class Ranked(NamedTuple):
    """How the second of two classes is ranked; roc, precision_recall: ``[points, 2]``, None where no curve was kept."""

    negative: int
    positive: int
    auroc: float
    average_precision: float
    roc: Array | None
    precision_recall: Array | None

    @property
    def share(self) -> float:
        """Of the second class: the average precision of chance."""
        return self.positive / (self.positive + self.negative)

    def describe_auroc(self) -> str:
        """With its 95 % interval."""
        return with_interval(self.auroc, auroc_interval(self.auroc, self.positive, self.negative))

    def describe_average_precision(self) -> str:
        """With its 95 % interval."""
        return with_interval(self.average_precision, average_precision_interval(self.average_precision, self.positive))


def with_interval(value: float, interval: Interval, *, percent: bool = False) -> str:
    """A score and its interval, in words."""
    number, low, high = (f"{each:.1%}" if percent else f"{each:.3f}" for each in (value, *interval))
    return f"{number} ({low} to {high})"


def read_ranked(tensors: Mapping[str, Array]) -> dict[str, Ranked]:
    """By domain, of the runs that kept it; what does not hold together is left out."""
    found = {}
    for name in SETS:
        numbers = tensors.get(f"ranking_{name}")
        if numbers is None or numbers.shape != (4,) or not np.isfinite(numbers).all():
            continue
        negative, positive, auroc, average = numbers.tolist()
        if min(negative, positive) >= 1 and 0 <= auroc <= 1 and 0 < average <= 1:
            curves = [_curve(tensors.get(f"{curve}_{name}")) for curve in ("roc", "precision_recall")]
            found[name] = Ranked(int(negative), int(positive), auroc, average, *curves)
    return found


def _curve(points: Array | None) -> Array | None:
    if points is None or points.ndim != 2 or points.shape[1] != 2 or not len(points):
        return None
    return points if bool(((points >= 0) & (points <= 1)).all()) else None


def read_sites(tensors: Mapping[str, Array]) -> dict[str, GroupedScores]:
    """By domain, the scores of each site that holds test rows; what does not hold together is left out."""
    found = {}
    for name in SETS:
        counts, words = tensors.get(f"sites_{name}"), tensors.get(f"site_names_{name}")
        if counts is None or words is None or counts.ndim != 2 or counts.shape[1] != 4 or not len(counts):
            continue
        rows, hits, positive, auc = counts.T
        names = _names(words)
        ranked = ~np.isnan(auc)
        holds = (rows >= 1) & (hits >= 0) & (hits <= rows) & (positive >= 0) & (positive <= rows)
        holds &= ~ranked | ((positive >= 1) & (positive < rows) & (auc >= 0) & (auc <= 1))
        if len(names) == len(counts) and bool(holds.all() and np.isfinite(rows).all()):
            found[name] = GroupedScores.summarise(
                "site",
                [
                    GroupCounts(
                        site, int(row[0]), int(row[1]), int(row[2]), None if np.isnan(row[3]) else float(row[3])
                    )
                    for site, row in zip(names, counts, strict=True)
                ],
            )
    return found


def read_hits(summary: Mapping[str, object]) -> dict[str, GroupedScores]:
    """The scores of sites by the rows that they keep from training, where a deployed run knows them."""
    clients = summary.get("clients")
    found = []
    for name, told in clients.items() if isinstance(clients, Mapping) else ():
        own = told if isinstance(told, Mapping) else {}
        rows, hits, positive = (own.get(f"validation_{what}") for what in ("rows", "hits", "positive"))
        if not (_whole(rows, 1, _MOST_ROWS) and _whole(hits, 0, rows)):
            continue
        auroc = own.get("validation_auroc")
        ranked = _whole(positive, 1, rows - 1) and isinstance(auroc, float) and 0 <= auroc <= 1
        found.append(GroupCounts(str(name), rows, hits, *((positive, auroc) if ranked else ())))
    return {AT_SITES: GroupedScores.summarise("site", found)} if found else {}


def _whole(value: Any, least: int, most: int) -> TypeGuard[int]:
    return type(value) is int and least <= value <= most


def _names(words: Array) -> list[str]:
    """Names of sites, from JSON as bytes; none where it is no list."""
    try:
        names = json.loads(words.astype(np.uint8).tobytes())
    except (ValueError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
