"""Scores by site or another group of rows as parts of a section: tables, and dots with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedmm.core.signals.groups import BEST, WORST, By, GroupedScores, GroupScores, worst_and_best
from fedmm.core.signals.intervals import Interval
from fedmm.reporting.html.charts import Chart, Figure, plain, round_off
from fedmm.reporting.html.collect import Report
from fedmm.reporting.html.parts import (
    ChartGrid,
    Controls,
    Details,
    HtmlTable,
    Part,
    name_method,
    two_lines,
)
from fedmm.reporting.tested import with_interval

_MOST_TABLES = 16
_LONGEST = 24
"""Letters of a group's name in a picture."""


class Scored(NamedTuple):
    """Scores by site or another group of rows: of a method, by its number.

    key: of the figures that show them; rows: a cell that says on which rows; caption: of their table.
    """

    number: int
    key: str
    rows: object
    caption: str
    scores: GroupedScores


def explain(noun: str, scored: Sequence[Scored]) -> str:
    """How to read the scores; noun: what a group is called, such as ``site``."""
    most = max(len(method.scores.groups) for method in scored)
    left_out = f" Of many {noun}s, the {WORST} worst and the {BEST} best are shown." if most > WORST + BEST + 1 else ""
    few = next((said for method in scored if (said := method.scores.describe_few(noun))), "")
    return (
        "from the worst on, with intervals of 95%: Wilson's for accuracy, Newcombe's for AUROC. A "
        f"{noun} with few rows may be worst by chance; its interval is then wide. Means are over {noun}s, spread is "
        f"the best less the worst.{f' {few[0].upper()}{few[1:]}.' if few else ''}{left_out}"
    )


def build_score_parts(
    noun: str, scored: Sequence[Scored], report: Report, controls: Controls, keys: Sequence[str]
) -> list[Part]:
    """Worst, mean and spread, a dot with its interval for each group, and tables; keys: of all figures to choose from.

    A key of no scores has an empty figure.
    """
    kinds = _kinds(scored)
    charts = [_chart(noun, kind, scored, keys) for kind in kinds]
    parts: list[Part] = [_summaries(noun, scored, report), controls, ChartGrid(charts)]
    for method in scored[:_MOST_TABLES]:
        table = _table(method.scores, kinds, method.caption)
        parts.append(table if len(scored) == 1 else Details(table.caption, table))
    return parts


def _summaries(noun: str, scored: Sequence[Scored], report: Report) -> HtmlTable:
    kinds = _kinds(scored)
    headings: list[object] = ["method", "rows", f"{noun}s"]
    for kind in kinds:
        headings += [two_lines(f"worst {noun}", f"by {kind.name}"), two_lines("mean", kind.name), "spread"]
    rows = []
    for number, _, of, _, grouped in scored:
        cells: list[object] = [name_method(number, report.methods[number].label), of, len(grouped.groups)]
        for kind in kinds:
            worst = next((group for group in grouped.groups if group.name == kind.worst(grouped)), None)
            mean, spread = kind.over_groups(grouped)
            cells += [two_lines(worst.name, kind.describe(worst)), mean, spread] if worst else ["-", "-", "-"]
        rows.append(cells)
    return HtmlTable(headings, rows, f"worst, mean and spread over {noun}s", numbers=2)


def _table(grouped: GroupedScores, kinds: Sequence[Kind], caption: str) -> HtmlTable:
    rows: list[list[object]] = []
    for group in worst_and_best(grouped.groups):
        if isinstance(group, int):
            rows.append([f"{group} others", "", *[""] * len(kinds)])
        else:
            rows.append([group.name, group.rows, *(kind.describe(group) for kind in kinds)])
    return HtmlTable([grouped.column, "rows", *(kind.name for kind in kinds)], rows, caption)


class Kind(NamedTuple):
    """A score of groups: its name, its unit, and by how much it is multiplied."""

    by: By
    name: str
    unit: str
    times: float

    def of(self, group: GroupScores) -> tuple[float, Interval] | None:
        """The score of a group with its interval; None if it has none."""
        if self.by == "accuracy":
            return group.accuracy, group.accuracy_interval
        return None if group.auc is None or group.auc_interval is None else (group.auc, group.auc_interval)

    def describe(self, group: GroupScores) -> str:
        """The same in words."""
        scored = self.of(group)
        return "-" if scored is None else with_interval(*scored, percent=self.by == "accuracy")

    def worst(self, grouped: GroupedScores) -> str | None:
        """The name of the worst group."""
        return grouped.worst if self.by == "accuracy" else grouped.worst_by_auc

    def mean(self, grouped: GroupedScores) -> float | None:
        """Over groups."""
        return grouped.mean_accuracy if self.by == "accuracy" else grouped.mean_auc

    def over_groups(self, grouped: GroupedScores) -> tuple[str, str]:
        """Mean and spread in words."""
        if self.by == "accuracy":
            return f"{grouped.mean_accuracy:.1%}", f"{grouped.spread_accuracy:.1%}"
        return ("-", "-") if grouped.mean_auc is None else (f"{grouped.mean_auc:.3f}", f"{grouped.spread_auc:.3f}")


ACCURACY, AUROC = Kind("accuracy", "accuracy", "%", 100.0), Kind("auc", "AUROC", "", 1.0)


def _kinds(scored: Sequence[Scored]) -> list[Kind]:
    """What there is to tell of the groups; first by what they are ordered."""
    ranked = any(method.scores.mean_auc is not None for method in scored)
    kinds = [ACCURACY, *([AUROC] if ranked else [])]
    return sorted(kinds, key=lambda kind: kind.by != scored[0].scores.by)


def _chart(noun: str, kind: Kind, scored: Sequence[Scored], keys: Sequence[str]) -> Chart:
    """A dot with its interval for each group, the worst above."""
    figures: dict[str, Figure] = {key: {"data": [], "layout": {}} for key in keys}
    tallest = 1
    for method in scored:
        grouped = method.scores.ordered(kind.by)
        shown = worst_and_best([group for group in grouped.groups if kind.of(group)])
        tallest = max(tallest, len(shown))
        if shown:
            figures[method.key] = _figure(grouped, shown, method.number, kind, noun)
    return Chart(
        f"{noun}s-{kind.name.lower()}",
        f"{kind.name} of each {noun}",
        f"Dot chart of the {kind.name} of each {noun} with its interval, the worst above; the tables hold the numbers.",
        figures,
        height=90 + 24 * max(tallest, 4),
    )


def _figure(grouped: GroupedScores, shown: Sequence[GroupScores | int], number: int, kind: Kind, noun: str) -> Figure:
    drawn = [
        (place, group, *scored)
        for place, group in enumerate(shown)
        if not isinstance(group, int) and (scored := kind.of(group))
    ]
    values = [kind.times * value for _, _, value, _ in drawn]
    trace: Figure = {
        "type": "scatter",
        "mode": "markers",
        "x": round_off(values),
        "y": [place for place, *_ in drawn],
        "text": [plain(f"{group.name}, {group.rows} rows") for _, group, _, _ in drawn],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": round_off([kind.times * (interval[1] - value) for _, _, value, interval in drawn]),
            "arrayminus": round_off([kind.times * (value - interval[0]) for _, _, value, interval in drawn]),
            "color": f"$line{number}",
            "thickness": 1.4,
            "width": 3,
        },
        "marker": {"color": f"$line{number}", "size": 8},
        "hovertemplate": f"%{{text}}: %{{x:.4~g}}{kind.unit}<extra></extra>",
    }
    mean = kind.times * (kind.mean(grouped) or 0.0)
    names = [f"{group} others" if isinstance(group, int) else short_name(group.name) for group in shown]
    line = {"color": "$faint", "dash": "dash", "width": 1.2}
    layout: Figure = {
        "xaxis": {
            "title": {"text": f"{kind.name}; dashed: mean over {noun}s"},
            "ticksuffix": kind.unit,
            **({} if kind.unit else {"tickformat": ".3f"}),
            "zeroline": False,
        },
        "yaxis": {
            "tickvals": list(range(len(shown))),
            "ticktext": [plain(name) for name in names],
            "range": [len(shown) - 0.5, -0.5],
            "zeroline": False,
            "showgrid": False,
        },
        "shapes": [
            {"type": "line", "yref": "paper", "x0": mean, "x1": mean, "y0": 0, "y1": 1, "line": line, "layer": "below"}
        ],
        "hovermode": "closest",
    }
    return {"data": [trace], "layout": layout}


def short_name(name: str, most: int = _LONGEST) -> str:
    """Without its middle where it is long, since names of groups, such as sites, often differ at their ends."""
    half = most // 2
    return name if len(name) <= most else f"{name[: most - half - 1]}…{name[-half:]}"
