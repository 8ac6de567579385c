"""Scores of a run as files of its folder hold them: ranking and curves of two classes, and scores by site and group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from fedmm.core.errors import FedmmError, require
from fedmm.core.signals.groups import EVALUATION, GroupCounts, GroupedScores
from fedmm.core.signals.intervals import Interval, auroc_interval, average_precision_interval
from fedmm.reporting.fields import Fields
from fedmm.reporting.read import Array

SETS = ("target", "source")
"""The domains whose test rows are scored."""
AT_SITES = "validation"
SITE_ROWS = {**{name: f"{name} test rows" for name in SETS}, AT_SITES: "rows kept from training"}
"""The rows by which single sites are scored, in words; the last by the sites of a deployed run themselves."""
_MOST_ROWS = 1 << 53
"""Of a site or group; more is no count."""


class Ranked(NamedTuple):
    """How the second of two classes is ranked; roc, precision_recall: ``[points, 2]``, None if no curve was kept."""

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
    number, low, high = (f"{end:.1%}" if percent else f"{end:.3f}" for end in (value, *interval))
    return f"{number} ({low} to {high})"


def read_ranked(tensors: Mapping[str, Array]) -> dict[str, Ranked]:
    """By domain, of the runs that kept it; what does not hold together is left out."""
    ranked = {}
    for name in SETS:
        numbers = tensors.get(f"ranking_{name}")
        if numbers is None or numbers.shape != (4,) or not np.isfinite(numbers).all():
            continue
        negative, positive, auroc, average = numbers.tolist()
        if min(negative, positive) >= 1 and 0 <= auroc <= 1 and 0 < average <= 1:
            curves = [_curve(tensors.get(f"{curve}_{name}")) for curve in ("roc", "precision_recall")]
            ranked[name] = Ranked(int(negative), int(positive), auroc, average, *curves)
    return ranked


def _curve(points: Array | None) -> Array | None:
    if points is None or points.ndim != 2 or points.shape[1] != 2 or not len(points):
        return None
    return points if bool(((points >= 0) & (points <= 1)).all()) else None


def read_sites(tensors: Mapping[str, Array]) -> dict[str, GroupedScores]:
    """By domain, the scores of each site that holds test rows; what does not hold together is left out."""
    sites = {}
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
            sites[name] = GroupedScores.summarise(
                "site",
                [
                    GroupCounts(
                        site, int(row[0]), int(row[1]), int(row[2]), None if np.isnan(row[3]) else float(row[3])
                    )
                    for site, row in zip(names, counts, strict=True)
                ],
            )
    return sites


def read_client_sites(tensors: Mapping[str, Array]) -> dict[str, str]:
    """The sites of clients by their names, which may have fewer letters; empty if that is not known."""
    try:
        named = json.loads(tensors["client_sites"].astype(np.uint8).tobytes())
    except (KeyError, ValueError, RecursionError):
        return {}
    return {client: str(site) for client, site in named.items()} if isinstance(named, dict) else {}


def read_tested_round(tensors: Mapping[str, Array]) -> int | None:
    """The round whose model the scores of test rows are of; None for the last."""
    kept = tensors.get("tested_round")
    return int(kept) if kept is not None and kept.shape == () and np.issubdtype(kept.dtype, np.integer) else None


def read_hits(summary: Mapping[str, object]) -> dict[str, GroupedScores]:
    """The scores of sites by the rows that they keep from training, where a deployed run knows them."""
    clients = summary.get("clients")
    sites = []
    for name, entry in clients.items() if isinstance(clients, Mapping) else ():
        numbers = entry if isinstance(entry, Mapping) else {}
        counts = _counts(
            str(name), *(numbers.get(f"validation_{what}") for what in ("rows", "hits", "positive", "auroc"))
        )
        sites += [] if counts is None else [counts]
    return {AT_SITES: GroupedScores.summarise("site", sites)} if sites else {}


class Evaluated(NamedTuple):
    """What ``fedmm evaluate --group --out`` wrote to a file of a run's folder: of which data and model, and the scores.

    training_file: whether the run was trained on rows of the same file.
    """

    file: str
    data: str
    label: str
    round: int
    checkpoint: str
    threshold: float | None
    training_file: bool
    scores: GroupedScores

    @property
    def rows(self) -> int:
        """Of all groups."""
        return sum(group.rows for group in self.scores.groups)


def read_evaluations(folder: Path) -> tuple[tuple[Evaluated, ...], tuple[str, ...]]:
    """Evaluations by group among the JSON files of a run's folder, and a sentence for each that is broken."""
    evaluations, broken = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue
        if EVALUATION.encode() in content:
            try:
                evaluations += _read_evaluation(path.name, content)
            except FedmmError as problem:
                broken.append(str(problem))
    return tuple(evaluations), tuple(broken)


def _read_evaluation(name: str, content: bytes) -> list[Evaluated]:
    """The evaluation in a file; none if it is something else or has no groups."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise FedmmError(f"{name} is not valid JSON") from None
    if not isinstance(values, dict) or values.get("format") != EVALUATION or values.get("grouped") is None:
        return []
    about = Fields(name, values)
    grouped = about.table("grouped")
    listed = grouped.values.get("groups")
    counts = []
    for entry in listed if isinstance(listed, list) else ():
        group = Fields(name, entry if isinstance(entry, dict) else {}, "grouped.groups.")
        words = ("rows", "hits", "positive", "auc")
        counted = _counts(group.text("name"), *(group.values.get(word) for word in words))
        if counted is None or counted.auc != group.values.get("auc"):
            raise FedmmError(f"{name} has counts of the group {group.text('name')!r} that do not hold together")
        counts.append(counted)
    require(
        bool(counts) and sum(count.rows for count in counts) == about.whole("rows"),
        f"{name} must have as many rows as its groups have together",
    )
    require(len({count.name for count in counts}) == len(counts), f"{name} must name each group once")
    return [
        Evaluated(
            file=name,
            data=about.text("data"),
            label=about.text("label"),
            round=about.whole("round"),
            checkpoint=about.text("checkpoint"),
            threshold=about.accuracy("threshold"),
            training_file=values.get("training_file") is True,
            scores=GroupedScores.summarise(grouped.text("column"), counts),
        )
    ]


def _counts(name: str, rows: Any, hits: Any, positive: Any, auroc: Any) -> GroupCounts | None:
    """None if numbers of a file are no counts; without an AUROC that they do not allow."""
    if not (_whole(rows, 1, _MOST_ROWS) and _whole(hits, 0, rows)):
        return None
    ranked = _whole(positive, 1, rows - 1) and isinstance(auroc, float) and 0 <= auroc <= 1
    return GroupCounts(name, rows, hits, *((positive, auroc) if ranked else ()))


def _whole(value: Any, least: int, most: int) -> TypeGuard[int]:
    return type(value) is int and least <= value <= most


def _names(words: Array) -> list[str]:
    """Names of sites, from JSON as bytes; none if it is no list."""
    try:
        names = json.loads(words.astype(np.uint8).tobytes())
    except (ValueError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []
