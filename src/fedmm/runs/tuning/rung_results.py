"""Read what a rung's runs measured, choose the finalist that wins, and tabulate all candidates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

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
from fedmm.runs.tuning.state import COMPLETED, RungResult

_INFORMATION, _RISK = RANKED_BY[0], "source_risk"
Table = dict[str, Any]
Evaluations = dict[int, dict[str, float]]
"""By round, the values of the validators after it."""


@dataclass(frozen=True)
class Results:
    """What a rung's runs measured after ``round``, the last in which all of them were evaluated; 0 if there is none.

    label_shift: as estimated by source-only runs. agreement: of a candidate's predictions on target rows, by candidate.
    """

    measured: Field
    round: int
    label_shift: Table | None
    agreement: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @staticmethod
    def of(rung: RungResult) -> Results:
        """Return the results of a rung as stored in ``tune.json``."""
        measured = {
            entry.label: [Measured(signals, diverged=bool(entry.diverged)) for signals in entry.signals]
            for entry in rung.entries
        }
        agreement = {entry.label: entry.agreement for entry in rung.entries if entry.agreement}
        return Results(measured, rung.judged_after, rung.label_shift, agreement)


def read_results(folder: Path, names: Mapping[str, Sequence[str]], signals: Sequence[str] = RANKED_BY) -> Results:
    """Read what the runs of a rung measured, by candidate.

    names: the folders of each candidate's runs. signals: the validators to read; a round counts if it has the first.
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
    """Return a run's evaluated rounds, with only the validators in ``signals``."""
    columns = {name: VALIDATORS[name].column for name in signals}

    def parse(text: str) -> Evaluations:
        rows = [json.loads(line) for line in text.splitlines()]
        return {
            int(row["round"]): {
                name: float(row[column]) for name, column in columns.items() if row.get(column) is not None
            }
            for row in rows
            if row.get(columns[signals[0]]) is not None
        }

    return _read(path, parse, {})


def read_summary(folder: Path) -> Table:
    """Return the summary of a run; empty if there is none."""
    return _read(folder / SUMMARY, lambda text: dict(json.loads(text)), {})


T = TypeVar("T")


def _read(path: Path, parse: Callable[[str], T], otherwise: T) -> T:
    """Parse the text of a run's file; return ``otherwise`` if there is no such file."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return otherwise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise FedmmError(
            f"{path} is damaged; if another tuning is under way in that folder, wait until it ends, else remove "
            f"{path.parent} and resume"
        ) from problem


def _ended_unmeasured(summary: Mapping[str, Any], evaluations: Evaluations) -> bool:
    """Return whether a run completed without a measurement after its last round."""
    return summary.get("status") == "completed" and summary.get("rounds") not in evaluations


@dataclass(frozen=True)
class Choice:
    """A choice. label: what to use, empty if nothing can be. adapted: the best that adapts, None if none may win.

    supported: whether the evidence supports adapting, None if it cannot be judged. sentence: why.
    """

    label: str
    adapted: str | None
    supported: bool | None
    sentence: str


def choose_finalist(results: Results | None, vetoes: Mapping[str, str]) -> Choice:
    """Choose the best mean rank among the half whose predictions agree best, between near rows or between seeds.

    Source only also wins if the class mix is reliably estimated to differ, if it agrees better and has a lower source
    risk than the best that adapts, if all others are ruled out, or if there are too few seeds to tell.
    """
    if results is None:
        return Choice(SOURCE_ONLY, None, None, "The time was over before anything could be judged; use source only.")
    ruled_out = {label: why for label, why in vetoes.items() if why}
    ranked = list(rank_candidates(results.measured, ruled_out))
    free = [label for label in ranked if label not in ruled_out]
    adapting = [label for label in free if label != SOURCE_ONLY]
    if not adapting:
        return _none_adapts(results, ruled_out, ranked)
    believed = believed_agreement(free, results.agreement)
    known = {label: own[believed] for label, own in results.agreement.items() if believed and believed in own}
    order = keep_agreeing(free, known)
    best = next((label for label in order if label != SOURCE_ONLY), adapting[0])
    beside = f"The best that adapts is {best}."
    other = "those of near rows" if believed == NEIGHBOURS else "those of another seed"
    if cannot := _cannot_judge(results, ruled_out, best):
        return replace(cannot, sentence=f"{_sentence(CANNOT_JUDGE)}: {cannot.sentence}. {beside}")
    if against := _against_adapting(results, known, best, f"with {other}", believed):
        return Choice(SOURCE_ONLY, best, False, f"Use source only: {against}")
    agreeing = f"{len(order)} of {len(free)} finalists whose predictions agree best with {other}"
    among = f"the {agreeing} ({believed} {known[order[0]]:.3f})" if len(order) < len(free) else "the finalists"
    names = signals_of_all({label: results.measured[label] for label in free})
    reason = f"which has the best mean rank by {', '.join(names)} of {among}"
    if order[0] == SOURCE_ONLY:
        return Choice(SOURCE_ONLY, best, False, f"Use source only, {reason}. {beside}")
    rough = results.label_shift is not None and results.label_shift["notable"]
    doubt = " The class mix of the target may differ, which was estimated roughly." if rough else ""
    if known.get(best, 1.0) <= SLIGHT:
        doubt += f" Its predictions hardly agree with {other} more than by chance, so that little speaks for it."
    return Choice(best, best, True, f"Use {best}, {reason}.{doubt}")


def _none_adapts(results: Results, ruled_out: Mapping[str, str], ranked: Sequence[str]) -> Choice:
    """Return the choice if no candidate that adapts may win."""
    first = next((label for label in ranked if label != SOURCE_ONLY), None)
    runs = [run for label in ranked if label != SOURCE_ONLY for run in results.measured[label]]
    if _diverged(results, SOURCE_ONLY):
        return nothing_trained(results)
    if not any(run.signals or run.diverged for run in runs):
        why = "no candidate that adapts was measured"
        return Choice(SOURCE_ONLY, None, None, f"{_sentence(CANNOT_JUDGE)}: {why}; use source only.")
    why = f" {first}: {ruled_out[first]}." if first else ""
    return Choice(SOURCE_ONLY, None, False, f"Every candidate that adapts is ruled out; use source only.{why}")


def nothing_trained(results: Results) -> Choice:
    """Return an empty choice: every candidate is ruled out, and the one to fall back on diverged."""
    diverged = sum(_diverged(results, label) for label in results.measured)
    others = "" if diverged == len(results.measured) else ", and the others are ruled out too"
    return Choice(
        "", None, None,
        f"Nothing could be trained: {diverged} of {len(results.measured)} candidates diverged{others}; use smaller "
        "learning rates (algorithm.lr_min and lr_max)",
    )  # fmt: skip


def _diverged(results: Results, label: str) -> bool:
    return any(run.diverged for run in results.measured[label])


def _cannot_judge(results: Results, ruled_out: Mapping[str, str], best: str) -> Choice | None:
    """Return what to use, and why, if it cannot be judged whether adapting helps. best: the best that adapts."""
    if SOURCE_ONLY in ruled_out:
        why = f"source only, with which it would be compared, is ruled out: {ruled_out[SOURCE_ONLY]}"
        return Choice(best if _diverged(results, SOURCE_ONLY) else SOURCE_ONLY, best, None, why)
    seeds = min(len(runs) for runs in results.measured.values())
    if seeds < FEWEST_SEEDS:
        why = f"{FEWEST_SEEDS} seeds of each finalist are needed, not {seeds}; use source only"
        return Choice(SOURCE_ONLY, best, None, why)
    return None


def _against_adapting(
    results: Results, known: Mapping[str, float], best: str, with_what: str, believed: str | None
) -> str:
    """Return why source only is safer than the best that adapts, as the rest of the verdict; empty if it is not.

    known: the agreement of predictions, by candidate; with_what: with what, in words; believed: its name.
    """
    shift = results.label_shift
    if shift is not None and shift["reliable"] and shift["notable"]:
        return (
            f"the target's class mix is estimated to differ from the source's in {shift['distance']:.0%} of the rows, "
            f"and adapting may then do harm. The best that adapts is {best}."
        )
    agrees_better = best in known and known.get(SOURCE_ONLY, 0.0) > known[best]
    if agrees_better and _risk(results, SOURCE_ONLY) < _risk(results, best):
        return (
            f"its predictions agree better {with_what} ({believed} {known[SOURCE_ONLY]:.3f}, not {known[best]:.3f}), "
            f"and its {_RISK} is lower, than those of the best that adapts, {best}."
        )
    return ""


def _risk(results: Results, label: str) -> float:
    """Return the mean source risk of a candidate; nan if a run did not measure it."""
    return fmean(run.signals.get(_RISK, math.nan) for run in results.measured[label])


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def find_judged_rung(rungs: Sequence[RungResult]) -> RungResult | None:
    """Return the last rung that can be judged.

    One that was cut short counts if it measured all candidates and went as far as the one before; a first one, if it
    reached one in ``FIRST_SHARE`` of its rounds.
    """
    least = 0
    judged: RungResult | None = None
    for rung in rungs:
        least = least or max(1, rung.rounds // FIRST_SHARE)
        whole = judged is None or all(all(entry.signals) or entry.diverged for entry in rung.entries)
        if rung.status == COMPLETED or (whole and rung.judged_after >= least):
            judged = rung
        least = rung.rounds
    return judged


def tabulate(rungs: Sequence[RungResult], always: Sequence[str], signals: Sequence[str] = RANKED_BY) -> list[Table]:
    """Return a row for each candidate, from the last rung it ran in; the furthest and best come first."""
    rows: dict[str, Table] = {}
    for number, rung in enumerate(rungs, start=1):
        for entry in rung.entries:
            rows[entry.label] = {
                "candidate": entry.label,
                "rung": number,
                "rounds": rung.judged_after,
                "signals": {name: _spread(entry.signals, name) for name in signals},
                "agreement": dict(entry.agreement),
                "seeds": len(entry.runs),
                "rank": entry.rank,
                "veto": entry.veto,
                "always": entry.label in always,
            }
    order = {label: place for rung in rungs for place, label in enumerate(rung.order)}
    return sorted(rows.values(), key=lambda row: (-row["rung"], order[row["candidate"]]))


def _spread(runs: Sequence[Mapping[str, float]], name: str) -> Table | None:
    values = [run[name] for run in runs if name in run]
    return {"mean": fmean(values), "low": min(values), "high": max(values)} if values else None
