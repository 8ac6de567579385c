"""The section on single sites: how good the model is on labelled rows of each that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fedmm.core.signals.groups import GroupedScores, GroupScores
from fedmm.core.signals.intervals import Interval
from fedmm.reporting.html.charts import Chart, Figure, plain, rounded
from fedmm.reporting.html.collect import Report
from fedmm.reporting.html.parts import (
    Controls,
    Details,
    Grid,
    Part,
    Section,
    Table,
    Text,
    absent,
    method_options,
    name_method,
    two_lines,
)
from fedmm.reporting.tested import AT_SITES, SITE_ROWS, with_interval

_MOST_TABLES = 16
_WORST, _BEST = 10, 5
"""How many sites are shown of many."""
_LONGEST = 24
"""Letters of a site's name in a picture."""
Each = TypeVar("Each")


def site_section(report: Report) -> Section:
    """Worst, mean and spread over sites, a dot with its interval for each, and a table."""
    found: dict[tuple[int, str], GroupedScores] = {
        (number, rows): method.first.sites[rows]
        for rows in SITE_ROWS
        for number, method in enumerate(report.methods)
        if rows in method.first.sites
    }
    if not found:
        words = "These runs do not know which sites hold labelled test rows, so no site is scored on its own."
        return Section("sites", "Sites", [absent(words)])
    most = max(len(grouped.groups) for grouped in found.values())
    left_out = f" Of many sites, the {_WORST} worst and the {_BEST} best are shown." if _cut(most) else ""
    words = (
        "The model on labelled rows of each site that it was not trained on, from the worst on, with intervals of 95%: "
        "Wilson's for accuracy, Newcombe's for AUROC. A site with few rows may be worst by chance; its interval is "
        f"then wide. Means are over sites, spread is the best less the worst.{left_out} Of the run with the first "
        "seed, after its last round."
    )
    methods, there = dict.fromkeys(number for number, _ in found), dict.fromkeys(rows for _, rows in found)
    if AT_SITES in there:
        words += " Rows kept from training are those that sites measure on; what was chosen by them looks better there."
    options = [(rows, SITE_ROWS[rows]) for rows in there]
    controls = Controls([("method", method_options(methods, report)), ("rows", options)])
    parts: list[Part] = [Text(words), _summaries(found, report), controls, Grid(_charts(found, methods, there))]
    for (number, rows), grouped in list(found.items())[:_MOST_TABLES]:
        table = _table(grouped, f"sites by their {SITE_ROWS[rows]}, {report.methods[number].label}")
        parts.append(table if len(found) == 1 else Details(table.caption, table))
    return Section("sites", "Sites", parts)


def _summaries(found: Mapping[tuple[int, str], GroupedScores], report: Report) -> Table:
    ranked = any(grouped.mean_auc is not None for grouped in found.values())
    headings: list[object] = ["method", "rows", "sites", two_lines("worst site", "by accuracy"), "mean", "spread"]
    headings += [two_lines("worst site", "by AUROC"), "mean AUROC", "spread"] if ranked else []
    rows = []
    for (number, kind), grouped in found.items():
        worst = grouped.groups[0]
        cells: list[object] = [
            name_method(number, report.methods[number].label),
            SITE_ROWS[kind],
            len(grouped.groups),
            two_lines(worst.name, with_interval(worst.accuracy, worst.accuracy_interval, percent=True)),
            f"{grouped.mean_accuracy:.1%}",
            f"{grouped.spread_accuracy:.1%}",
        ]
        if ranked:
            least = next((each for each in grouped.groups if each.name == grouped.worst_by_auc), None)
            cells += ["-", "-", "-"] if least is None else [two_lines(least.name, _auc(least)), *_over_sites(grouped)]
        rows.append(cells)
    return Table(headings, rows, "worst, mean and spread over sites", numbers=2)


def _over_sites(grouped: GroupedScores) -> list[object]:
    return [f"{grouped.mean_auc:.3f}", f"{grouped.spread_auc:.3f}"]


def _auc(group: GroupScores) -> str:
    return "-" if group.auc is None or group.auc_interval is None else with_interval(group.auc, group.auc_interval)


def _cut(sites: int) -> bool:
    return sites > _WORST + _BEST + 1


def worst_and_best(sites: Sequence[Each]) -> list[Each | int]:
    """All of them or, of many, the worst and the best and between them how many are left out."""
    if not _cut(len(sites)):
        return list(sites)
    return [*sites[:_WORST], len(sites) - _WORST - _BEST, *sites[-_BEST:]]


def _table(grouped: GroupedScores, caption: str) -> Table:
    ranked = grouped.mean_auc is not None
    rows: list[list[object]] = []
    for group in worst_and_best(grouped.groups):
        if isinstance(group, int):
            rows.append([f"{group} others", *[""] * (3 if ranked else 2)])
        else:
            accuracy = with_interval(group.accuracy, group.accuracy_interval, percent=True)
            rows.append([group.name, group.rows, accuracy, *([_auc(group)] if ranked else [])])
    return Table(["site", "rows", "accuracy", *(["AUROC"] if ranked else [])], rows, caption)


def _charts(
    found: Mapping[tuple[int, str], GroupedScores], methods: Mapping[int, None], there: Mapping[str, None]
) -> list[Chart]:
    def accuracies(grouped: GroupedScores) -> list[Dot]:
        return [
            (
                each.name,
                each.rows,
                100 * each.accuracy,
                (100 * each.accuracy_interval[0], 100 * each.accuracy_interval[1]),
            )
            for each in grouped.groups
        ]

    charts = [_chart("accuracy", "%", found, methods, there, accuracies)]
    if any(grouped.mean_auc is not None for grouped in found.values()):
        charts.append(_chart("AUROC", "", found, methods, there, _ranked))
    return charts


Dot = tuple[str, int, float, Interval]
"""A site, its rows, its score and the score's interval."""


def _ranked(grouped: GroupedScores) -> list[Dot]:
    dots = [
        (each.name, each.rows, each.auc, each.auc_interval)
        for each in grouped.groups
        if each.auc is not None and each.auc_interval is not None
    ]
    return sorted(dots, key=lambda dot: (dot[2], dot[0]))


def _chart(
    score: str,
    unit: str,
    found: Mapping[tuple[int, str], GroupedScores],
    methods: Mapping[int, None],
    there: Mapping[str, None],
    dots_of: Callable[[GroupedScores], list[Dot]],
) -> Chart:
    """A dot with its interval for each site, the worst above."""
    figures: dict[str, Figure] = {}
    tallest = 1
    for number in methods:
        for rows in there:
            grouped = found.get((number, rows))
            dots = [] if grouped is None else dots_of(grouped)
            tallest = max(tallest, len(worst_and_best(dots)))
            figures[f"{number}|{rows}"] = _figure(dots, number, score, unit) if dots else {"data": [], "layout": {}}
    return Chart(
        f"sites-{score.lower()}",
        f"{score} of each site",
        f"Dot chart of the {score} of each site with its interval, the worst above; the tables below hold the numbers.",
        figures,
        height=90 + 24 * max(tallest, 4),
    )


def _figure(dots: Sequence[Dot], number: int, score: str, unit: str) -> Figure:
    shown = worst_and_best(dots)
    drawn = [(place, dot) for place, dot in enumerate(shown) if not isinstance(dot, int)]
    values = [dot[2] for _, dot in drawn]
    trace: Figure = {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(values),
        "y": [place for place, _ in drawn],
        "text": [plain(f"{dot[0]}, {dot[1]} rows") for _, dot in drawn],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": rounded([dot[3][1] - dot[2] for _, dot in drawn]),
            "arrayminus": rounded([dot[2] - dot[3][0] for _, dot in drawn]),
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
        "xaxis": {"title": {"text": f"{score}; dashed: mean over sites"}, "ticksuffix": unit, "zeroline": False},
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
    """Without its middle where it is long, since names of sites often differ at their ends."""
    half = most // 2
    return name if len(name) <= most else f"{name[: most - half - 1]}…{name[-half:]}"
