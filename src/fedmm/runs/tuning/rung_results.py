"""What a rung's runs measured without target labels, the finalist that wins, and a table of all candidates."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from fedmm.config.schema import SOURCE_ONLY
from fedmm.core.errors import FedmmError
from fedmm.core.signals.validators import CANNOT_JUDGE, FEWEST_SEEDS, VALIDATORS
from fedmm.runs.run_folder import ROUNDS, SUMMARY
from fedmm.runs.tuning.halving import FIRST_SHARE
from fedmm.runs.tuning.ranking import (
    NEIGHBOURS,
    RANKED_BY,
    SLIGHT,
    Field,
    Measured,
    believed_agreement,
    keep_agreeing,
    rank_candidates,
    signals_of_all,
)

_INFORMATION, _RISK = RANKED_BY[0], "source_risk"
Table = dict[str, Any]
Evaluations = dict[int, dict[str, float]]
"""By round, what was measured after it, by validator."""


@dataclass(frozen=True)
class Results:
    """A rung's runs, measured after ``round``, the last that all of them were evaluated in; 0 if there is none.

    label_shift: as the source-only runs estimated it. agreement: by candidate, of its predictions on target rows.
    """

    measured: Field
    round: int
    label_shift: Table | None
    agreement: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @staticmethod
    def of(rung: Mapping[str, Any]) -> Results:
        """As a rung in ``tune.json`` tells it."""
        measured = {
            entry["label"]: [Measured(signals, diverged=bool(entry["diverged"])) for signals in entry["signals"]]
            for entry in rung["entries"]
        }
        agreement = {entry["label"]: entry["agreement"] for entry in rung["entries"] if entry.get("agreement")}
        return Results(measured, rung["judged_after"], rung["label_shift"], agreement)


def read_results(folder: Path, names: Mapping[str, Sequence[str]], signals: Sequence[str] = RANKED_BY) -> Results:
    """What the runs of a rung measured, by candidate.

    names: the folders of each candidate's runs. signals: the validators that are read, of which a round has the first.
    """
    runs = {name: _evaluations(folder / name / ROUNDS, signals) for own in names.values() for name in own}
    summaries = {name: read_summary(folder / name) for name in runs}
    diverged = {name for name, summary in summaries.items() if summary.get("status") == "diverged"}
    unmeasured = {name for name in runs if _ended_unmeasured(summaries[name], runs[name])}
    begun = [set(found) for name, found in runs.items() if found and name not in diverged | unmeasured]
    last = max(set.intersection(*begun), default=0) if begun else 0

    def measured(name: str) -> Measured:
        if name in diverged:
            return Measured(diverged=True)
        if name in unmeasured:
            return Measured()
        past = [each[_INFORMATION] for round_, each in runs[name].items() if round_ <= last and _INFORMATION in each]
        return Measured(runs[name].get(last, {}), max(past, default=None))

    shifts = [
        each["label_shift"] for name in names.get(SOURCE_ONLY, ()) if (each := summaries[name]).get("label_shift")
    ]
    worst = max(shifts, key=lambda shift: float(shift["high"]), default=None)
    return Results({label: [measured(name) for name in own] for label, own in names.items()}, last, worst)


def _evaluations(path: Path, signals: Sequence[str]) -> Evaluations:
    """A run's evaluated rounds; of the columns nothing is read but what the ranking goes by."""
    columns = {name: VALIDATORS[name].column for name in signals}
    found: Evaluations = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = _read_json(line, path)
            values = {name: row[column] for name, column in columns.items() if row.get(column) is not None}
            if signals[0] in values:
                found[row["round"]] = values
    return found


def read_summary(folder: Path) -> Table:
    """The summary of a run; empty if there is none."""
    path = folder / SUMMARY
    return _read_json(path.read_text(encoding="utf-8"), path) if path.exists() else {}


def _read_json(text: str, path: Path) -> Table:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as problem:
        raise FedmmError(
            f"{path} is damaged; if another tuning is under way in that folder, wait until it ends, else remove "
            f"{path.parent} and resume"
        ) from problem


def _ended_unmeasured(summary: Mapping[str, Any], evaluations: Evaluations) -> bool:
    """Whether a run ended with nothing that could be measured."""
    return summary.get("status") == "completed" and summary["rounds"] not in evaluations


@dataclass(frozen=True)
class Choice:
    """label: what to use. adapted: the best of those that adapt, None if all are ruled out. sentence: why."""

    label: str
    adapted: str | None
    supported: bool | None
    sentence: str


def choose_finalist(results: Results | None, vetoes: Mapping[str, str]) -> Choice:
    """Of the half whose predictions agree best with those of near rows, or of seeds, the one of the best mean rank.

    Source only where the class mix is reliably estimated to differ, where it agrees better and has the lower source
    risk than the best that adapts, where all others are ruled out, and where there are too few seeds to tell.
    """
    if results is None:
        return Choice(SOURCE_ONLY, None, None, "The time was over before anything could be judged; use source only.")
    ruled_out = {label: why for label, why in vetoes.items() if why}
    measured = results.measured
    ranked = list(rank_candidates(measured, ruled_out))
    adapting = [label for label in ranked if label != SOURCE_ONLY and label not in ruled_out]
    if not any(run.signals or run.diverged for label in ranked if label != SOURCE_ONLY for run in measured[label]):
        why = "no candidate that adapts was measured"
        return Choice(SOURCE_ONLY, None, None, f"{_sentence(CANNOT_JUDGE)}: {why}; use source only.")
    if not adapting:
        first = next((label for label in ranked if label != SOURCE_ONLY), None)
        why = f" {first}: {ruled_out[first]}." if first else ""
        if SOURCE_ONLY in ruled_out:
            why = f"{why} Source only is ruled out too: {ruled_out[SOURCE_ONLY]}."
        return Choice(SOURCE_ONLY, None, False, f"Every candidate that adapts is ruled out; use source only.{why}")
    free = [label for label in ranked if label not in ruled_out]
    believed = believed_agreement(free, results.agreement)
    known = {label: own[believed] for label, own in results.agreement.items() if believed and believed in own}
    order = keep_agreeing(free, known)
    other = "those of near rows" if believed == NEIGHBOURS else "those of another seed"
    best = next((label for label in order if label != SOURCE_ONLY), adapting[0])
    beside = f"The best that adapts is {best}."
    seeds = min(len(runs) for runs in results.measured.values())
    if seeds < FEWEST_SEEDS:
        why = f"{FEWEST_SEEDS} seeds of each finalist are needed, not {seeds}"
        return Choice(SOURCE_ONLY, best, None, f"{_sentence(CANNOT_JUDGE)}: {why}; use source only. {beside}")
    if SOURCE_ONLY in ruled_out:
        why = f"source only, with which it would be compared, is ruled out: {ruled_out[SOURCE_ONLY]}"
        label = best if any(run.diverged for run in measured[SOURCE_ONLY]) else SOURCE_ONLY
        return Choice(label, best, None, f"{_sentence(CANNOT_JUDGE)}: {why}. {beside}")
    shift = results.label_shift
    if shift is not None and shift["reliable"] and shift["notable"]:
        why = f"the target's class mix is estimated to differ from the source's in {shift['distance']:.0%} of the rows"
        return Choice(SOURCE_ONLY, best, False, f"Use source only: {why}, and adapting may then do harm. {beside}")
    agrees_better = best in known and known.get(SOURCE_ONLY, 0.0) > known[best]
    if agrees_better and _risk(results, SOURCE_ONLY) < _risk(results, best):
        why = (
            f"its predictions agree better with {other} ({believed} {known[SOURCE_ONLY]:.3f}, not "
            f"{known[best]:.3f}), and its {_RISK} is lower, than those of the best that adapts, {best}"
        )
        return Choice(SOURCE_ONLY, best, False, f"Use source only: {why}.")
    agreeing = f"{len(order)} of {len(free)} finalists whose predictions agree best with {other}"
    among = f"the {agreeing} ({believed} {known[order[0]]:.3f})" if len(order) < len(free) else "the finalists"
    names = signals_of_all({label: results.measured[label] for label in free})
    reason = f"which has the best mean rank by {', '.join(names)} of {among}"
    if order[0] == SOURCE_ONLY:
        return Choice(SOURCE_ONLY, best, False, f"Use source only, {reason}. {beside}")
    doubt = (
        " The class mix of the target may differ, which was estimated roughly." if shift and shift["notable"] else ""
    )
    if known.get(order[0], 1.0) <= SLIGHT:
        doubt += f" Its predictions hardly agree with {other} more than by chance, so that little speaks for it."
    return Choice(order[0], best, True, f"Use {order[0]}, {reason}.{doubt}")


def _risk(results: Results, label: str) -> float:
    """The mean source risk of a candidate; nan if a run did not measure it."""
    return fmean(run.signals.get(_RISK, math.nan) for run in results.measured[label])


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def find_judged_rung(rungs: Sequence[Table]) -> Table | None:
    """The last rung that can be judged; one that was cut short, only where it measured all candidates and went as far
    as the one before. A first one that was cut short must have done what is the least for a first rung.
    """
    least = 0
    judged: Table | None = None
    for rung in rungs:
        least = least or max(1, rung["rounds"] // FIRST_SHARE)
        whole = judged is None or all(all(entry["signals"]) or entry["diverged"] for entry in rung["entries"])
        if rung["status"] == "completed" or (whole and rung["judged_after"] >= least):
            judged = rung
        least = rung["rounds"]
    return judged


def tabulate(
    rungs: Sequence[Mapping[str, Any]], always: Sequence[str], signals: Sequence[str] = RANKED_BY
) -> list[Table]:
    """A row for each candidate, as it stood in the last rung it ran in; the furthest and best first."""
    rows: dict[str, Table] = {}
    for number, rung in enumerate(rungs, start=1):
        for entry in rung["entries"]:
            rows[entry["label"]] = {
                "candidate": entry["label"],
                "rung": number,
                "rounds": rung["judged_after"],
                "signals": {name: _spread(entry["signals"], name) for name in signals},
                "agreement": dict(entry.get("agreement") or {}),
                "seeds": len(entry["runs"]),
                "rank": entry["rank"],
                "veto": entry["veto"],
                "always": entry["label"] in always,
            }
    order = {label: place for rung in rungs for place, label in enumerate(rung["order"])}
    return sorted(rows.values(), key=lambda row: (-row["rung"], order[row["candidate"]]))


def _spread(runs: Sequence[Mapping[str, float]], name: str) -> Table | None:
    values = [run[name] for run in runs if name in run]
    return {"mean": fmean(values), "low": min(values), "high": max(values)} if values else None
