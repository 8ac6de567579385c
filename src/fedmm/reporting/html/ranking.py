"""The section on two classes over all thresholds: ROC, and precision against recall."""

from __future__ import annotations

from collections.abc import Mapping

from fedmm.reporting.html.charts import Chart, Figure, Lines, plain, round_off
from fedmm.reporting.html.chosen import describe_model
from fedmm.reporting.html.collect import Report, name_rows
from fedmm.reporting.html.parts import ChartGrid, HtmlTable, Part, Section, Text, absent, name_method
from fedmm.reporting.read import Array
from fedmm.reporting.tested import SETS, Ranked

_HEIGHT = 340


def ranking_section(report: Report, lines: Lines) -> Section:
    """Both curves of each set of test rows beside each other, of each method's first run, and the areas under them."""
    title, parts = "ROC and precision", list[Part]()
    for rows in SETS:
        found = {
            number: method.first.ranked[rows]
            for number, method in enumerate(report.methods)
            if rows in method.first.ranked
        }
        if found:
            parts += _of_rows(rows, found, report, lines)
    if not parts:
        return Section("ranking", title, [absent("These runs kept no ROC curves: they need test rows of two classes.")])
    second = {method.first.name_of(1) for method in report.methods if method.first.ranked}
    of = f"class {second.pop()!r}" if len(second) == 1 else "the second class"
    words = (
        f"How test rows of {of} are ranked above the others, over all thresholds of its probability. Dashed lines are "
        f"chance; intervals are 95%. {describe_model(report)}"
    )
    return Section("ranking", title, [Text(words), *parts])


def _of_rows(rows: str, found: Mapping[int, Ranked], report: Report, lines: Lines) -> list[Part]:
    table = HtmlTable(
        ["method", "rows", "of the second class", "AUROC", "average precision"],
        [
            [
                name_method(number, report.methods[number].label),
                ranked.positive + ranked.negative,
                f"{ranked.positive} ({ranked.share:.1%})",
                ranked.describe_auroc(),
                ranked.describe_average_precision(),
            ]
            for number, ranked in found.items()
        ],
        f"areas under the curves of {name_rows(rows, report)}",
    )
    curves: dict[str, dict[int, list[list[float]]]] = {
        "roc": {number: ranked.roc.tolist() for number, ranked in found.items() if ranked.roc is not None},
        "precision-recall": {
            number: from_zero(ranked.precision_recall)
            for number, ranked in found.items()
            if ranked.precision_recall is not None
        },
    }
    if not all(curves.values()):
        return [Text(f"Of {name_rows(rows, report)}, no curves were kept, as with run.keep_rows = false:"), table]
    charts = [_chart(name, rows, drawn, found, report, lines) for name, drawn in curves.items()]
    return [ChartGrid(charts), table]


def from_zero(points: Array) -> list[list[float]]:
    """Recall and precision, from recall 0 on: the first precision holds until recall rises to the first point."""
    listed: list[list[float]] = points.tolist()
    return [[0.0, listed[0][1]], *listed]


def _chart(
    name: str,
    rows: str,
    drawn: Mapping[int, list[list[float]]],
    found: Mapping[int, Ranked],
    report: Report,
    lines: Lines,
) -> Chart:
    roc = name == "roc"
    area, title = ("AUROC", "ROC") if roc else ("average precision", "precision and recall")
    told = {
        number: ranked.describe_auroc() if roc else ranked.describe_average_precision()
        for number, ranked in found.items()
    }
    share = next(iter(found.values())).share
    chance = [(0.0, 0.0 if roc else share), (1.0, 1.0 if roc else share)]
    data: list[Figure] = [
        {
            "type": "scatter", "mode": "lines", "x": [x for x, _ in chance], "y": round_off([y for _, y in chance]),
            "line": {"color": "$faint", "dash": "dash", "width": 1.2}, "hoverinfo": "skip",
        }
    ]  # fmt: skip
    across, up = ("false positive rate", "true positive rate") if roc else ("recall", "precision")
    for number, points in drawn.items():
        x, y = zip(*points, strict=True)
        data.append(
            {
                "type": "scatter", "mode": "lines", "meta": number, "name": plain(report.methods[number].label),
                "x": round_off(x), "y": round_off(y),
                "line": {**lines.line(number), "shape": "linear" if roc else "vh"},
                "hovertemplate": f"{up} %{{y:.3f}} at {across} %{{x:.3f}}",
            }
        )  # fmt: skip
    layout: Figure = {
        "xaxis": {"title": {"text": across}, "range": [-0.01, 1.01]},
        "yaxis": {"title": {"text": up}, "range": [-0.01, 1.02]},
        "hovermode": "closest",
    }
    ends = "; ".join(f"{report.methods[number].label} has {area} {words}" for number, words in list(told.items())[:8])
    of = name_rows(rows, report)
    only = f": {area} {next(iter(told.values()))}" if len(told) == 1 else ""
    return Chart(
        f"{name}-{rows}",
        f"{title}, {of}{only}",
        f"Line chart of {up} by {across} on {of}: {ends}.",
        {"": {"data": data, "layout": layout}},
        _HEIGHT,
    )
