"""Sections of what the runs cost: bytes to a given accuracy, and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fedmm.reporting.html.bands import Band, band, cumulative, thinned
from fedmm.reporting.html.charts import Chart, Lines, rounded, short
from fedmm.reporting.html.collect import Material
from fedmm.reporting.html.headline import named
from fedmm.reporting.html.markup import Markup, element, joined, table
from fedmm.reporting.html.sections import Grid, Part, Section, absent, bands_of, sentence
from fedmm.reporting.read import Run

_STEPS = (1, 2, 5, 10)
_MOST_LEVELS = 5
_SENT = ("bytes_up", "bytes_down")


class Cost(NamedTuple):
    """What had been spent when an accuracy was first reached."""

    round: int
    megabytes_up: float
    megabytes_down: float
    seconds: float


def communication_section(material: Material, lines: Lines) -> Section:
    """Bytes up and down, and what an accuracy cost."""
    charts = []
    for column, title in (("bytes_up", "megabytes sent up, in all"), ("bytes_down", "megabytes sent down, in all")):
        found = {
            number: each
            for number, method in enumerate(material.methods)
            if (each := band([cumulative(run, column, 1e-6) for run in method.runs])) is not None
        }
        if found:
            charts.append(lines.chart(column.replace("_", "-"), title, found, unit=" MB", height=260))
    if not charts:
        return Section("communication", "Communication", [absent("These runs did not count the bytes they sent.")])
    parts: list[Part] = [sentence("Of all clients together; a megabyte is a million bytes.")]
    against = _accuracy_by_bytes(material, lines)
    if against:
        parts += [against, *_levels(material)]
    else:
        parts.append(absent("Without target accuracy there is no cost of reaching one."))
    return Section("communication", "Communication", [*parts, Grid(charts)])


def _accuracy_by_bytes(material: Material, lines: Lines) -> Chart | None:
    found = {number: each for number, each in enumerate(cumulative_megabytes(material)) if each}
    if not found:
        return None
    places = {number: megabytes for number, (megabytes, _) in found.items()}
    bands = {number: each for number, (_, each) in found.items()}
    title = "target accuracy by megabytes, up and down"
    return lines.chart("accuracy-by-bytes", title, bands, unit="%", x_title="MB", x=places, height=360)


def cumulative_megabytes(material: Material) -> list[tuple[list[float], Band] | None]:
    """For each method, megabytes up and down until the rounds in which accuracy was measured, and the accuracies."""
    found: list[tuple[list[float], Band] | None] = [None] * len(material.methods)
    for number, each in bands_of(material, "target_accuracy", 100.0).items():
        totals = [_megabytes(run) for run in material.methods[number].runs if run.series("target_accuracy").rounds]
        if all(t in total for total in totals for t in each.rounds):
            found[number] = [float(fmean(total[t] for total in totals)) for t in each.rounds], each
    return found


def _megabytes(run: Run) -> dict[int, float]:
    up, down = (dict(zip(*cumulative(run, column, 1e-6), strict=True)) for column in _SENT)
    return {t: up[t] + down[t] for t in up if t in down}


def cost_of(run: Run, accuracy: float) -> Cost | None:
    """What a run had spent when it first measured this target accuracy (in percent); None where it never did."""
    reached = next(
        (t for t, value in zip(*run.series("target_accuracy"), strict=True) if 100 * value >= accuracy), None
    )
    if reached is None:
        return None

    def spent(column: str) -> float:
        return sum(value for t, value in zip(*run.series(column), strict=True) if t <= reached)

    return Cost(reached, spent("bytes_up") / 1e6, spent("bytes_down") / 1e6, spent("seconds"))


def levels(material: Material) -> list[int]:
    """A few round accuracies in percent that some run reached and none began with."""
    values = [run.series("target_accuracy").values for run in (entry.run for entry in material.entries)]
    known = [each for each in values if each]
    if not known:
        return []
    low, high = 100 * min(each[0] for each in known), 100 * max(max(each) for each in known)
    step = next((step for step in _STEPS if (high - low) / step <= _MOST_LEVELS), _STEPS[-1])
    first = math.floor(low / step) * step + step
    return [level for level in range(int(first), 101, step) if level <= high][-_MOST_LEVELS:]


def _levels(material: Material) -> list[Markup]:
    shown = levels(material)
    if not shown:
        return []
    rows = []
    for number, method in enumerate(material.methods):
        cells = [_cost_cell(method.runs, level) for level in shown]
        rows.append([named(number, method.label), *cells])
    headings = ["method", *(f"{level}%" for level in shown)]
    words = "What it took to measure a target accuracy for the first time: the mean over the seeds that did."
    slider = element(
        "label",
        element("span", "another accuracy"),
        element(
            "input", type="range", min="0", max="100", step="0.5", value=str(shown[-1]), id="level",
            aria_describedby="level-value",
        ),
        element("output", f"{shown[-1]}%", id="level-value"),
        class_="slider",
    )  # fmt: skip
    empty = [[named(number, method.label), *"----"] for number, method in enumerate(material.methods)]
    asked = table(
        ["method", "round", "MB up", "MB down", "seconds", "seeds"],
        [[*row, "-"] for row in empty],
        "cost of the chosen accuracy",
    )
    return [
        sentence(words),
        table(headings, rows, "cost of some accuracies"),
        element("div", slider, asked, class_="ask", id="ask"),
    ]


def _cost_cell(runs: Sequence[Run], level: float) -> object:
    costs = [cost for run in runs if (cost := cost_of(run, level))]
    if not costs:
        return "never"
    some = f", {len(costs)} of {len(runs)} seeds" if len(costs) < len(runs) else ""
    megabytes = fmean(cost.megabytes_up + cost.megabytes_down for cost in costs)
    return joined(
        [f"round {fmean(cost.round for cost in costs):.0f}", element("small", f"{short(megabytes)} MB{some}")]
    )


def cost_data(material: Material, most: int = 400) -> list[list[dict[str, list[float]]]]:
    """For the slider, by method and seed: best accuracy so far, and what had been spent, where it rose."""
    found = []
    for method in material.methods:
        seeds = []
        for run in method.runs:
            rounds, values = run.series("target_accuracy")
            rises = [i for i, value in enumerate(values) if value > max(values[:i], default=-1.0)]
            rises = [rises[i] for i in thinned(len(rises), most)]
            totals = {
                name: dict(zip(*cumulative(run, name, times), strict=True))
                for name, times in (("bytes_up", 1e-6), ("bytes_down", 1e-6), ("seconds", 1.0))
            }
            seeds.append(
                {
                    "accuracy": rounded([100 * values[i] for i in rises]),
                    "round": [rounds[i] for i in rises],
                    **{name: rounded([total.get(rounds[i], 0.0) for i in rises]) for name, total in totals.items()},
                }
            )
        found.append(seeds)
    return found


def time_section(material: Material, lines: Lines) -> Section:
    """Seconds a round."""
    bands = bands_of(material, "seconds")
    if not bands:
        return Section("time", "Time", [absent("These runs did not take their time.")])
    hardware = {
        ", ".join(f"{key} {value}" for key, value in about.items())
        for entry in material.entries
        if isinstance(about := entry.summary.get("hardware"), dict)
    }
    where = f" On {'; '.join(sorted(hardware))}." if hardware else ""
    chart = lines.chart("seconds", "seconds a round", bands, height=260)
    return Section("time", "Time", [sentence(f"Seconds of each round, training and messages.{where}"), chart])
