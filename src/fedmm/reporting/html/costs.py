"""Sections of what the runs cost: bytes to a given accuracy, and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from fedmm.reporting.curves import Curve, mean_curve
from fedmm.reporting.html.charts import Chart, Lines, round_off, short, thin
from fedmm.reporting.html.collect import Report
from fedmm.reporting.html.parts import (
    ChartGrid,
    HtmlTable,
    Part,
    Section,
    Slider,
    Text,
    absent,
    method_curves,
    name_method,
    shared_or_longest,
    two_lines,
)
from fedmm.reporting.read import Run, Series

_STEPS = (1, 2, 5, 10)
_MOST_LEVELS = 5
_SENT = ("bytes_up", "bytes_down")


class CostToAccuracy(NamedTuple):
    """What had been spent when an accuracy was first reached."""

    round: int
    megabytes_up: float
    megabytes_down: float
    seconds: float


def communication_section(report: Report, lines: Lines) -> Section:
    """Bytes up and down, and what an accuracy cost."""
    charts = []
    for column, title in (("bytes_up", "megabytes sent up, in all"), ("bytes_down", "megabytes sent down, in all")):
        curves = {
            number: shared_or_longest(curve)
            for number, method in enumerate(report.methods)
            if (curve := mean_curve([_cumulate(run, column, 1e-6) for run in method.runs])).runs
        }
        if curves:
            charts.append(lines.chart(column.replace("_", "-"), title, curves, unit=" MB", height=260))
    if not charts:
        return Section("communication", "Communication", [absent("These runs did not count the bytes they sent.")])
    parts: list[Part] = [Text("Of all clients together; a megabyte is a million bytes.")]
    against = _accuracy_by_bytes(report, lines)
    if against:
        parts += [against, *_levels(report)]
    elif report.has_target:
        parts.append(absent("Without target accuracy there is no cost of reaching one."))
    return Section("communication", "Communication", [*parts, ChartGrid(charts)])


def _accuracy_by_bytes(report: Report, lines: Lines) -> Chart | None:
    found = {number: points for number, points in enumerate(accuracy_by_megabytes(report)) if points}
    if not found:
        return None
    places = {number: megabytes for number, (megabytes, _) in found.items()}
    bands = {number: band for number, (_, band) in found.items()}
    title = "target accuracy by megabytes, up and down"
    return lines.chart("accuracy-by-bytes", title, bands, unit="%", x_title="MB", x=places, height=360)


def accuracy_by_megabytes(report: Report) -> list[tuple[list[float], Curve] | None]:
    """For each method, megabytes up and down until the rounds in which accuracy was measured, and the accuracies."""
    found: list[tuple[list[float], Curve] | None] = [None] * len(report.methods)
    for number, curve in method_curves(report, "target_accuracy", 100.0).items():
        totals = [_megabytes(run) for run in report.methods[number].runs if run.series("target_accuracy").rounds]
        if all(t in total for total in totals for t in curve.rounds):
            found[number] = [float(fmean(total[t] for total in totals)) for t in curve.rounds], curve
    return found


def _cumulate(run: Run, column: str, times: float = 1.0) -> Series:
    """The sum of a column up to each round."""
    rounds, values = run.series(column)
    return Series(rounds, [times * total for total in accumulate(values)])


def _megabytes(run: Run) -> dict[int, float]:
    up, down = (dict(zip(*_cumulate(run, column, 1e-6), strict=True)) for column in _SENT)
    return {t: up[t] + down[t] for t in up if t in down}


def cost_of(run: Run, accuracy: float) -> CostToAccuracy | None:
    """What a run had spent when it first measured this target accuracy (in percent); None if it never did."""
    reached = next(
        (t for t, value in zip(*run.series("target_accuracy"), strict=True) if 100 * value >= accuracy), None
    )
    if reached is None:
        return None

    def spent(column: str) -> float:
        return sum(value for t, value in zip(*run.series(column), strict=True) if t <= reached)

    return CostToAccuracy(reached, spent("bytes_up") / 1e6, spent("bytes_down") / 1e6, spent("seconds"))


def levels(report: Report) -> list[int]:
    """A few round accuracies in percent that some run reached and none began with."""
    values = [run.series("target_accuracy").values for run in (entry.run for entry in report.entries)]
    known = [value for value in values if value]
    if not known:
        return []
    low, high = 100 * min(cost[0] for cost in known), 100 * max(max(cost) for cost in known)
    step = next((step for step in _STEPS if (high - low) / step <= _MOST_LEVELS), _STEPS[-1])
    first = math.floor(low / step) * step + step
    return [level for level in range(int(first), 101, step) if level <= high][-_MOST_LEVELS:]


def _levels(report: Report) -> list[Part]:
    shown = levels(report)
    if not shown:
        return []
    rows = []
    for number, method in enumerate(report.methods):
        cells = [_cost_cell(method.runs, level) for level in shown]
        rows.append([name_method(number, method.label), *cells])
    headings = ["method", *(f"{level}%" for level in shown)]
    words = "What it took until a target accuracy was first measured: the mean over the seeds that reached it."
    empty = [[name_method(number, method.label), *"-----"] for number, method in enumerate(report.methods)]
    headings_asked = ["method", "round", "MB up", "MB down", "seconds", "seeds"]
    return [
        Text(words),
        HtmlTable(headings, rows, "cost of some accuracies"),
        Slider(shown[-1], HtmlTable(headings_asked, empty, "cost of the chosen accuracy")),
    ]


def _cost_cell(runs: Sequence[Run], level: float) -> object:
    costs = [cost for run in runs if (cost := cost_of(run, level))]
    if not costs:
        return "never"
    some = f", {len(costs)} of {len(runs)} seeds" if len(costs) < len(runs) else ""
    megabytes = fmean(cost.megabytes_up + cost.megabytes_down for cost in costs)
    return two_lines(f"round {fmean(cost.round for cost in costs):.0f}", f"{short(megabytes)} MB{some}")


def cost_data(report: Report) -> list[list[dict[str, list[float]]]]:
    """For the slider, by method and seed: best accuracy so far, and what had been spent, where it rose."""
    found = []
    for method in report.methods:
        seeds = []
        for run in method.runs:
            rounds, values = run.series("target_accuracy")
            rises = [i for i, value in enumerate(values) if value > max(values[:i], default=-1.0)]
            rises = [rises[i] for i in thin(len(rises), 400)]
            totals = {
                name: dict(zip(*_cumulate(run, name, times), strict=True))
                for name, times in (("bytes_up", 1e-6), ("bytes_down", 1e-6), ("seconds", 1.0))
            }
            seeds.append(
                {
                    "accuracy": round_off([100 * values[i] for i in rises]),
                    "round": [rounds[i] for i in rises],
                    **{name: round_off([total.get(rounds[i], 0.0) for i in rises]) for name, total in totals.items()},
                }
            )
        found.append(seeds)
    return found


def time_section(report: Report, lines: Lines) -> Section:
    """Seconds a round."""
    bands = method_curves(report, "seconds")
    if not bands:
        return Section("time", "Time", [absent("These runs did not record their times.")])
    hardware = {
        ", ".join(f"{key} {value}" for key, value in about.items())
        for entry in report.entries
        if isinstance(about := entry.summary.get("hardware"), dict)
    }
    where = f" On {'; '.join(sorted(hardware))}." if hardware else ""
    chart = lines.chart("seconds", "seconds a round", bands, height=260)
    return Section("time", "Time", [Text(f"Seconds of each round, training and messages.{where}"), chart])
