"""Scores by site or another group of rows as parts of a section: tables, and dots with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedmm.core.signals.groups import BEST, WORST, GroupedScores, GroupScores, worst_and_best
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
    return (
        "from the worst on, with intervals of 95%: Wilson's for accuracy, Newcombe's for AUROC. A "
        f"{noun} with few rows may be worst by chance; its interval is then wide. Means are over {noun}s, spread is "
        f"the best less the worst.{left_out}"
    )


def build_score_parts(
    noun: str, scored: Sequence[Scored], report: Report, controls: Controls, keys: Sequence[str]
) -> list[Part]:
    """Worst, mean and spread, a dot with its interval for each group, and tables; keys: of all figures to choose from.

    A key of no scores has an empty figure.
    """
    parts: list[Part] = [_summaries(noun, scored, report), controls, ChartGrid(_charts(noun, scored, keys))]
    for method in scored[:_MOST_TABLES]:
        table = _table(method.scores, method.caption)
        parts.append(table if len(scored) == 1 else Details(table.caption, table))
    return parts


def _summaries(noun: str, scored: Sequence[Scored], report: Report) -> HtmlTable:
    ranked = any(method.scores.mean_auc is not None for method in scored)
    headings: list[object] = ["method", "rows", f"{noun}s", two_lines(f"worst {noun}", "by accuracy"), "mean", "spread"]
    headings += [two_lines(f"worst {noun}", "by AUROC"), "mean AUROC", "spread"] if ranked else []
    rows = []
    for number, _, kind, _, grouped in scored:
        worst = grouped.groups[0]
        cells: list[object] = [
            name_method(number, report.methods[number].label),
            kind,
            len(grouped.groups),
            two_lines(worst.name, with_interval(worst.accuracy, worst.accuracy_interval, percent=True)),
            f"{grouped.mean_accuracy:.1%}",
            f"{grouped.spread_accuracy:.1%}",
        ]
        if ranked:
            least = next((group for group in grouped.groups if group.name == grouped.worst_by_auc), None)
            cells += ["-", "-", "-"] if least is None else [two_lines(least.name, _auc(least)), *_over_groups(grouped)]
        rows.append(cells)
    return HtmlTable(headings, rows, f"worst, mean and spread over {noun}s", numbers=2)


def _over_groups(grouped: GroupedScores) -> list[object]:
    return [f"{grouped.mean_auc:.3f}", f"{grouped.spread_auc:.3f}"]


def _auc(group: GroupScores) -> str:
    return "-" if group.auc is None or group.auc_interval is None else with_interval(group.auc, group.auc_interval)


def _table(grouped: GroupedScores, caption: str) -> HtmlTable:
    ranked = grouped.mean_auc is not None
    rows: list[list[object]] = []
    for group in worst_and_best(grouped.groups):
        if isinstance(group, int):
            rows.append([f"{group} others", *[""] * (3 if ranked else 2)])
        else:
            accuracy = with_interval(group.accuracy, group.accuracy_interval, percent=True)
            rows.append([group.name, group.rows, accuracy, *([_auc(group)] if ranked else [])])
    return HtmlTable([grouped.column, "rows", "accuracy", *(["AUROC"] if ranked else [])], rows, caption)


def _charts(noun: str, scored: Sequence[Scored], keys: Sequence[str]) -> list[Chart]:
    def accuracies(grouped: GroupedScores) -> list[Dot]:
        return [
            (
                group.name,
                group.rows,
                100 * group.accuracy,
                (100 * group.accuracy_interval[0], 100 * group.accuracy_interval[1]),
            )
            for group in grouped.groups
        ]

    charts = [_chart(noun, "accuracy", "%", scored, keys, accuracies)]
    if any(method.scores.mean_auc is not None for method in scored):
        charts.append(_chart(noun, "AUROC", "", scored, keys, _rank_groups))
    return charts


Dot = tuple[str, int, float, Interval]
"""A group, its rows, its score and the score's interval."""


def _rank_groups(grouped: GroupedScores) -> list[Dot]:
    dots = [
        (group.name, group.rows, group.auc, group.auc_interval)
        for group in grouped.groups
        if group.auc is not None and group.auc_interval is not None
    ]
    return sorted(dots, key=lambda dot: (dot[2], dot[0]))


def _chart(
    noun: str,
    score: str,
    unit: str,
    scored: Sequence[Scored],
    keys: Sequence[str],
    dots_of: Callable[[GroupedScores], list[Dot]],
) -> Chart:
    """A dot with its interval for each group, the worst above."""
    figures: dict[str, Figure] = {key: {"data": [], "layout": {}} for key in keys}
    tallest = 1
    for method in scored:
        dots = dots_of(method.scores)
        tallest = max(tallest, len(worst_and_best(dots)))
        if dots:
            figures[method.key] = _figure(dots, method.number, score, unit, noun)
    return Chart(
        f"{noun}s-{score.lower()}",
        f"{score} of each {noun}",
        f"Dot chart of the {score} of each {noun} with its interval, the worst above; the tables hold the numbers.",
        figures,
        height=90 + 24 * max(tallest, 4),
    )


def _figure(dots: Sequence[Dot], number: int, score: str, unit: str, noun: str) -> Figure:
    shown = worst_and_best(dots)
    drawn = [(place, dot) for place, dot in enumerate(shown) if not isinstance(dot, int)]
    values = [dot[2] for _, dot in drawn]
    trace: Figure = {
        "type": "scatter",
        "mode": "markers",
        "x": round_off(values),
        "y": [place for place, _ in drawn],
        "text": [plain(f"{dot[0]}, {dot[1]} rows") for _, dot in drawn],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": round_off([dot[3][1] - dot[2] for _, dot in drawn]),
            "arrayminus": round_off([dot[2] - dot[3][0] for _, dot in drawn]),
            "color": f"$line{number}",
            "thickness": 1.4,
            "width": 3,
        },
        "marker": {"color": f"$line{number}", "size": 8},
        "hovertemplate": f"%{{text}}: %{{x:.4~g}}{unit}<extra></extra>",
    }
    mean = sum(dot[2] for dot in dots) / len(dots)
    names = [f"{dot} others" if isinstance(dot, int) else short_name(dot[0]) for dot in shown]
    line = {"color": "$faint", "dash": "dash", "width": 1.2}
    layout: Figure = {
        "xaxis": {"title": {"text": f"{score}; dashed: mean over {noun}s"}, "ticksuffix": unit, "zeroline": False},
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
