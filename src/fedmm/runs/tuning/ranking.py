"""Rank candidates without target labels: what rules one out, and the mean rank of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from fedmm.core.signals.validators import BELIEVED, VALIDATORS
from fedmm.core.signals.warning_signs import FALLEN, NEAR_ZERO

RANKED_BY = (*BELIEVED, "source_risk")
"""The validators whose ranks are averaged."""
_INFORMATION, _RISK = BELIEVED[0], "source_risk"
BELOW_SOURCE_ONLY = 0.9
"""A candidate whose mean target_information ends below this share of source only's has collapsed too."""
RISKY = 0.5
"""A source risk further than this share of the way from the best one to chance rules a candidate out."""
SEEDS, NEIGHBOURS = "seed_agreement", "neighbour_agreement"
"""How far predictions on target rows agree: between two seeds, and between near rows."""
AGREEING = 2
"""One in this many finalists, those whose predictions agree best, can win; always at least two."""
UNLIKE = 0.5
"""Near rows are too unlike to judge by if their median agreement is below this share of that between seeds."""

SLIGHT = 0.2
"""Kappas up to this are slight agreement (Landis and Koch, 1977), hardly more than chance."""


@dataclass(frozen=True)
class Measured:
    """What one run measured without target labels.

    signals: by validator, in the round that is judged. best_information: the highest target_information up to then.
    diverged: whether the run diverged.
    """

    signals: Mapping[str, float] = field(default_factory=dict)
    best_information: float | None = None
    diverged: bool = False


Field = Mapping[str, Sequence[Measured]]
"""By candidate, its runs: one per seed, with the same seeds in the same order."""


def find_vetoes(candidates: Field, source_only: str, classes: int | None = None) -> dict[str, str]:
    """Return why candidates may not win, by label, without those that may.

    Source only is ruled out only if it diverged or was not measured. classes: their number, which gives the risk of
    guessing; no source risk rules out without it, or if even the best is no better than guessing.
    """
    risks = {label: _mean(runs, _RISK) for label, runs in candidates.items()}
    known = {label: risk for label, risk in risks.items() if risk is not None}
    safest = min(known.values(), default=0.0)
    guessing = math.inf if classes is None else math.log(classes)
    most = safest + RISKY * (guessing - safest) if safest < guessing else math.inf
    plain = _mean(candidates[source_only], _INFORMATION)
    vetoes: dict[str, str] = {}
    for label, runs in candidates.items():
        reasons = _veto_diverged(runs)
        if not reasons and label != source_only:
            reasons = _veto_collapsed(runs, plain, NEAR_ZERO * (0.0 if classes is None else math.log(classes)))
            if known.get(label, 0.0) > most:
                reasons.append(f"source_risk {known[label]:.3g} is nearer to chance than to the best, {safest:.3g}")
        if reasons:
            vetoes[label] = reasons[0]
    return vetoes


def find_unmeasured(candidates: Field) -> dict[str, str]:
    """Return why candidates cannot be judged, by label: a run diverged, or was not measured."""
    return {label: reasons[0] for label, runs in candidates.items() if (reasons := _veto_diverged(runs))}


def _veto_diverged(runs: Sequence[Measured]) -> list[str]:
    many = sum(run.diverged for run in runs)
    if many:
        return [f"{many} of {len(runs)} runs diverged"]
    missing = not runs or any(not run.signals for run in runs)
    return ["not measured"] if missing else []


def _veto_collapsed(runs: Sequence[Measured], plain: float | None, nothing: float) -> list[str]:
    """Return why runs collapsed, if they did. nothing: below it, target_information shows that nothing was learnt."""
    for run in runs:
        last, best = run.signals.get(_INFORMATION), run.best_information
        if last is not None and best is not None and last < FALLEN * best:
            if best < nothing:
                return [f"{_INFORMATION} never rose above {best:.3g}, near 0"]
            return [f"collapsed: {_INFORMATION} fell from {best:.3g} to {last:.3g}"]
    mean = _mean(runs, _INFORMATION)
    if mean is not None and plain is not None and mean < BELOW_SOURCE_ONLY * plain:
        return [f"{_INFORMATION} {mean:.3g} is below source only's, {plain:.3g}"]
    return []


def rank_candidates(candidates: Field, vetoes: Mapping[str, str]) -> dict[str, float]:
    """Return every candidate's mean rank over validators and seeds, lower is better, in the order of rank.

    A validator counts if all candidates that are ranked measured it. Those with a veto follow all others, and those
    that were not measured come last. Ties keep their order.
    """
    free = [label for label in candidates if label not in vetoes]
    vetoed = [label for label in vetoes if all(run.signals and not run.diverged for run in candidates[label])]
    unmeasured = [label for label in vetoes if label not in vetoed]
    ranks = _mean_ranks({label: candidates[label] for label in free})
    ranks |= {
        label: len(free) + rank for label, rank in _mean_ranks({each: candidates[each] for each in vetoed}).items()
    }
    ranks |= dict.fromkeys(unmeasured, float(len(candidates)))
    place = {label: number for number, label in enumerate([*free, *vetoed, *unmeasured])}
    return dict(sorted(ranks.items(), key=lambda each: (each[0] in unmeasured, each[1], place[each[0]])))


def _mean_ranks(candidates: Field) -> dict[str, float]:
    if not candidates:
        return {}
    seeds = min(len(runs) for runs in candidates.values())
    names = signals_of_all({label: runs[:seeds] for label, runs in candidates.items()})
    columns = [
        {label: _sign(name) * runs[seed].signals[name] for label, runs in candidates.items()}
        for seed in range(seeds)
        for name in names
    ]
    return _average_ranks(columns) or dict.fromkeys(candidates, 1.0)


def signals_of_all(candidates: Field) -> list[str]:
    """Return the validators that rank these candidates: those that all of their runs measured."""
    return [name for name in RANKED_BY if all(name in run.signals for runs in candidates.values() for run in runs)]


def _sign(name: str) -> float:
    return -1.0 if VALIDATORS[name].higher else 1.0


def believed_agreement(labels: Sequence[str], agreement: Mapping[str, Mapping[str, float]]) -> str | None:
    """Return the agreement by which these candidates are selected; None if some were not measured.

    It is that between near rows, or between seeds if near rows so rarely share a class that it means little.
    """
    measured = [agreement.get(label, {}) for label in labels]
    if not measured or any(NEIGHBOURS not in own for own in measured):
        return None
    if any(SEEDS not in own for own in measured):
        return NEIGHBOURS
    near, seeds = (median(own[name] for own in measured) for name in (NEIGHBOURS, SEEDS))
    return SEEDS if near < UNLIKE * seeds else NEIGHBOURS


def keep_agreeing(labels: Sequence[str], agreement: Mapping[str, float]) -> list[str]:
    """Return the half that agrees best (at least two), in the given order; all candidates if some were not measured."""
    if any(label not in agreement for label in labels):
        return list(labels)
    best = sorted(labels, key=lambda label: -agreement[label])[: max(2, -(-len(labels) // AGREEING))]
    return [label for label in labels if label in best]


def _average_ranks(columns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return every candidate's mean rank over columns, where the lowest value is first; ties share their rank."""
    found: dict[str, list[float]] = {}
    for values in columns:
        for label, value in values.items():
            below = sum(other < value for other in values.values())
            equal = sum(other == value for other in values.values())
            found.setdefault(label, []).append(below + (equal + 1) / 2)
    return {label: fmean(ranks) for label, ranks in found.items()}


def _mean(runs: Sequence[Measured], name: str) -> float | None:
    values = [run.signals[name] for run in runs if name in run.signals]
    return fmean(values) if values and len(values) == len(runs) else None
