"""The report on paper: small plots for a column of text, as a PDF of several pages or one PNG of the main ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedmm.core.files import atomic_write
from fedmm.core.signals.groups import By, GroupedScores, worst_and_best
from fedmm.reporting.curves import Curve, draw_curve
from fedmm.reporting.html.charts import method_strokes
from fedmm.reporting.html.chosen import choice_of, chosen_round
from fedmm.reporting.html.collect import Entry, Report, name_rows
from fedmm.reporting.html.costs import accuracy_by_megabytes
from fedmm.reporting.html.features import Maps
from fedmm.reporting.html.grouped import ACCURACY, AUROC, Kind, short_name
from fedmm.reporting.html.groups import evaluated_groups
from fedmm.reporting.html.headline import cost_cells, spread
from fedmm.reporting.html.labelled import score_cell, score_heading
from fedmm.reporting.html.metrics import columns_of
from fedmm.reporting.html.parts import method_curves
from fedmm.reporting.html.ranking import from_zero
from fedmm.reporting.read import Array, last_values
from fedmm.reporting.scores import TESTED, groups_by
from fedmm.reporting.style import FAINT, INK, PLAIN, RULE, Stroke, new_figure, quiet, save, whole_part, whole_rounds
from fedmm.reporting.tested import SETS, SITE_ROWS

_WIDTH, _ACROSS = 7.0, 2
"""Inches, and plots beside each other: each is then as wide as a column of text."""
_PLOT, _LINE = 2.35, 0.18
"""Inches: the height of a plot with its title, and of a line of text."""
_TEXT, _SMALL, _TITLE = 8.0, 7.0, 10.5
_DPI = 300
_ROWS_A_PAGE, _MOST_NAMES, _MOST_MAPS, _MOST_GROUPED, _NUMBERED = 3, 12, 4, 16, 12
_PLACES, _MOST_SCORES = (0.0, 0.34, 0.50, 0.68, 0.81, 0.90, 1.0), 3
"""Where columns of the table end, in its widths, and how many of them are scores."""
_MAIN = ("target_accuracy", "target_information", "consensus_gap")
_SHADE = LinearSegmentedColormap.from_list("shares", ("#FFFFFF", "#0B4F8A"))
_SETTINGS: dict[Any, Any] = {**PLAIN, "pdf.fonttype": 42, "font.size": _TEXT}


class Plot(NamedTuple):
    """A part of a page, and whether it is one of the main ones."""

    title: str
    draw: Callable[[Axes], None]
    main: bool = False


def write_pdf(report: Report, path: Path) -> Path:
    """Write all plots, six a page, below a table of the results."""
    plots = _plots(report)
    first, later = (_ROWS_A_PAGE - 1) * _ACROSS, _ROWS_A_PAGE * _ACROSS
    pages = [plots[:first], *(plots[at : at + later] for at in range(first, len(plots), later))]
    with (
        atomic_write(path) as partial,
        rc_context(_SETTINGS),
        PdfPages(partial, metadata={"CreationDate": None, "Title": report.title}) as file,
    ):
        for number, page in enumerate(pages):
            file.savefig(_page(report, page, table=number == 0))
    return path


def write_png(report: Report, path: Path) -> Path:
    """Write the main plots as one picture."""
    main = [plot for plot in _plots(report) if plot.main]
    with rc_context(_SETTINGS):
        return save(_page(report, main, table=False), path, dpi=_DPI)


def _page(report: Report, plots: Sequence[Plot], *, table: bool) -> Figure:
    cells = _cells(report) if table else []
    handles = _legend_handles(report)
    rows = max(-(-len(plots) // _ACROSS), 1)
    parts = [_LINE * (len(cells) + 1), rows * _PLOT + _LINE * -(-len(handles) // 4)]
    figure = new_figure(0.4 + sum(parts), _WIDTH)
    figure.suptitle(report.title[:110], x=0.014, ha="left", fontsize=_TITLE, weight="bold", color=INK)
    body = whole_part(figure)
    if cells:
        above, body = body.subfigures(2, 1, squeeze=False, height_ratios=parts)[:, 0]
        _draw_table(above.subplots(), cells)
    if handles:
        body.legend(
            handles=handles, loc="outside upper left", ncols=min(4, len(handles)), frameon=False,
            fontsize=_SMALL + 0.5, labelcolor=INK, borderpad=0, borderaxespad=1.0,
        )  # fmt: skip
    grid = body.subplots(rows, _ACROSS, squeeze=False).ravel()
    for axes, plot in zip(grid, plots, strict=False):
        axes.set_title(plot.title, loc="left", fontsize=_TEXT, weight="bold", color=INK)
        plot.draw(axes)
    for axes in grid[len(plots) :]:
        axes.set_axis_off()
    return figure


def _legend_handles(report: Report) -> list[Line2D]:
    """A line for each method; none if there is one method alone."""
    handles = [
        Line2D([], [], color=stroke.colour, linestyle=stroke.dash, linewidth=1.6, label=method.label[:40])
        for method, stroke in zip(report.methods, method_strokes(report), strict=True)
    ]
    return handles[:_MOST_NAMES] if len(handles) > 1 else []


def _cells(report: Report) -> list[list[str]]:
    """Headings, then a row for each method; validators stand for accuracies where no target labels are known."""
    if not report.has_target:
        return _labelled_cells(report)
    labelled = any(run.target_accuracy is not None for method in report.methods for run in method.runs)
    columns = ("target_information", "target_bnm", "source_risk")
    measured = ("target, last (%)", "chosen, no labels", "oracle") if labelled else columns
    rows = [["method", "seeds", *measured, "MB", "seconds"]]
    for method, costs in zip(report.methods, cost_cells(report), strict=True):
        runs = method.runs
        accuracies = (
            [run.target_accuracy for run in runs],
            [chosen.accuracy for _, chosen in map(choice_of, method.entries) if chosen],
            [oracle.accuracy for run in runs if (oracle := chosen_round(run, "target_accuracy"))],
        )
        last = (spread(last_values(runs, column), percent=False) for column in columns)
        rows.append([method.label[:34], str(len(runs)), *(map(spread, accuracies) if labelled else last), *costs[1:]])
    return rows


def _labelled_cells(report: Report) -> list[list[str]]:
    """Without a target: the scores by which models are judged, in the round that each run chose."""
    columns = [column for column in TESTED[report.metric] if report.measured(column)][:_MOST_SCORES]
    rows = [["method", "seeds", *map(score_heading, columns), "MB", "seconds"]]
    for method, costs in zip(report.methods, cost_cells(report), strict=True):
        cells = [score_cell(method.entries, column) for column in columns]
        rows.append([method.label[:34], str(len(method.runs)), *cells, *costs[1:]])
    return rows


def _draw_table(axes: Axes, cells: Sequence[Sequence[str]]) -> None:
    """Cells set to the right of their columns, but for the first column."""
    axes.set(xlim=(0, 1), ylim=(len(cells), 0))
    axes.set_axis_off()
    for number, row in enumerate(cells):
        for cell, right in zip(row, (*_PLACES[: len(row) - 2], *_PLACES[-2:]), strict=True):
            colour, side = INK if number else FAINT, "right" if right else "left"
            axes.text(right, number + 0.5, cell, fontsize=_TEXT, ha=side, va="center", color=colour)


def _plots(report: Report) -> list[Plot]:
    strokes = method_strokes(report)
    plots = []
    main = _MAIN if report.has_target else ("consensus_gap", "source_auroc", *TESTED[report.metric])
    for column, (title, unit) in columns_of(report).items():
        curves = method_curves(report, column, 100.0 if unit == "%" else 1.0)
        if curves:
            lines = [(curve, strokes[number], None) for number, curve in curves.items()]
            plots.append(Plot(title, _lines(lines, unit), column in main))
    by_bytes = zip(accuracy_by_megabytes(report), strokes, strict=True)
    found = [(measured[1], stroke, measured[0]) for measured, stroke in by_bytes if measured]
    if found:
        plots.append(Plot("target accuracy by megabytes, up and down", _lines(found, "%", "MB"), main=True))
    return plots + _maps(report) + _confusions(report) + _rankings(report, strokes) + _sites(report, strokes)


def _lines(
    lines: Sequence[tuple[Curve, Stroke, list[float] | None]], unit: str, x_title: str = "round"
) -> Callable[[Axes], None]:
    """Curves with their strokes, and other places of their points than the rounds."""

    def draw(axes: Axes) -> None:
        quiet(axes)
        axes.tick_params(axis="both", labelsize=_SMALL, pad=2)
        axes.tick_params(axis="x", length=2)
        for curve, stroke, x in lines:
            draw_curve(axes, curve, stroke, x=x, thin=0.6)
        axes.set_xlabel(x_title, fontsize=_SMALL, color=FAINT)
        axes.xaxis.set_major_locator(whole_rounds(6) if x_title == "round" else MaxNLocator(6))
        if unit == "%":
            axes.yaxis.set_major_formatter("{x:g}%")

    return draw


def _maps(report: Report) -> list[Plot]:
    maps = Maps()
    plots: list[Plot] = []
    for method in _first_methods(report):
        found = maps.of(method)
        for moment, words in (("before", "before training"), ("after", "after the last round")):
            if moment in found:
                title = f"features {words}: {method.run.label[:26]}"
                plots.append(Plot(title, _map(found[moment], method.tensors["map_domain"]), main=not plots[1:]))
    return plots


def _first_methods(report: Report) -> list[Entry]:
    """The first runs of some methods; a FedMM before others."""
    firsts = [method.first for method in report.methods]
    return sorted(firsts, key=lambda entry: not entry.run.algorithm.startswith("fedmm"))[:_MOST_MAPS]


def _map(points: Array, domains: Array) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for number, (name, colour, filled) in enumerate((("source", "#0072B2", True), ("target", "#D55E00", False))):
            here = domains == number
            axes.plot(
                *points[here].T,
                linestyle="none",
                marker="o" if filled else "D",
                markersize=2.6,
                markeredgewidth=0.0 if filled else 0.5,
                markeredgecolor=colour,
                markerfacecolor=colour if filled else "none",
                alpha=0.8,
                label=name,
            )
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(RULE)
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.01), ncols=2, frameon=False, fontsize=_SMALL, labelcolor=FAINT
        )

    return draw


def _confusions(report: Report) -> list[Plot]:
    domain, words = ("target", "target classes") if report.has_target else ("source", "classes of test rows")
    plots = []
    for entry in _first_methods(report):
        counts = entry.tensors.get(f"confusion_{domain}")
        if counts is not None and counts.ndim == 2 and counts.sum() > 0:
            plots.append(Plot(f"{words}: {entry.run.label[:30]}", _matrix(counts, entry)))
    return plots


def _matrix(counts: Array, entry: Entry) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap=_SHADE, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
        if len(counts) <= _NUMBERED:
            for (row, column), share in np.ndenumerate(shares):
                colour = "white" if share > 55 else INK
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=5.5, color=colour)
            names = [entry.name_of(number)[:10] for number in range(len(counts))]
            axes.set_xticks(range(len(counts)), names, rotation=90 if max(map(len, names)) > 2 else 0)
            axes.set_yticks(range(len(counts)), names)
        axes.tick_params(labelsize=6, length=0, labelcolor=FAINT, pad=2)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("predicted", fontsize=_SMALL, color=FAINT)
        axes.set_ylabel("true", fontsize=_SMALL, color=FAINT)

    return draw


def _rankings(report: Report, strokes: Sequence[Stroke]) -> list[Plot]:
    plots = []
    main = not report.has_target
    for rows in SETS:
        found = [
            (method.first.ranked[rows], stroke)
            for method, stroke in zip(report.methods, strokes, strict=True)
            if rows in method.first.ranked
        ]
        roc = [(ranked.roc, stroke) for ranked, stroke in found if ranked.roc is not None]
        if not roc:
            continue
        only, of = found[0][0] if len(found) == 1 else None, name_rows(rows, report)
        where = f", {rows}" if report.has_target else ""
        plots.append(
            Plot(
                f"ROC, {of}" if only is None else f"AUROC {only.describe_auroc()}{where}",
                _curves(roc, (0.0, 1.0), ("false positive rate", "true positive rate")),
                main,
            )
        )
        share = found[0][0].share
        precision = [
            (np.array(from_zero(ranked.precision_recall)), stroke)
            for ranked, stroke in found
            if ranked.precision_recall is not None
        ]
        plots.append(
            Plot(
                f"precision, {of}" if only is None else f"AP {only.describe_average_precision()}{where}",
                _curves(precision, (share, share), ("recall", "precision"), steps=True),
                main,
            )
        )
    return plots


def _curves(
    curves: Sequence[tuple[Array, Stroke]], chance: tuple[float, float], words: tuple[str, str], *, steps: bool = False
) -> Callable[[Axes], None]:
    """Curves in the unit square; chance: at the left and at the right."""

    def draw(axes: Axes) -> None:
        quiet(axes)
        axes.tick_params(axis="both", labelsize=_SMALL, pad=2)
        axes.plot((0, 1), chance, color=FAINT, linewidth=0.8, linestyle=(0, (4, 2)))
        for points, stroke in curves:
            style = "steps-pre" if steps else "default"
            axes.plot(*points.T, color=stroke.colour, linestyle=stroke.dash, linewidth=1.2, drawstyle=style)
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.03), xticks=(0.0, 0.25, 0.5, 0.75, 1.0))
        axes.set_xlabel(words[0], fontsize=_SMALL, color=FAINT)
        axes.set_ylabel(words[1], fontsize=_SMALL, color=FAINT)

    return draw


def _sites(report: Report, strokes: Sequence[Stroke]) -> list[Plot]:
    """Sites and other groups by the score that is told first, of the first methods."""
    colours = {method.first.run.label: stroke.colour for method, stroke in zip(report.methods, strokes, strict=True)}
    main, by = not report.has_target, groups_by(report.metric)
    plots = []
    for entry in _first_methods(report):
        for rows in (rows for rows in SITE_ROWS if rows in entry.sites):
            kind, draw = _dots(entry.sites[rows], by, colours[entry.run.label])
            plots.append(Plot(f"{kind.name}, {name_rows(rows, report)}: {short_name(entry.run.label)}", draw, main))
    for group in evaluated_groups(report)[:_MOST_GROUPED]:
        kind, draw = _dots(group.evaluation.scores, by, strokes[group.number].colour)
        plots.append(Plot(f"{kind.name} by {group.words}: {group.method.label}"[:52], draw, main))
    return plots


def _dots(grouped: GroupedScores, by: By, colour: str) -> tuple[Kind, Callable[[Axes], None]]:
    """A dot with its interval for each group, by AUROC if that is asked for and known; and which score it is."""
    kind = AUROC if by == "auc" and grouped.mean_auc is not None else ACCURACY
    shown = worst_and_best([group for group in grouped.ordered(kind.by).groups if kind.of(group)])

    def draw(axes: Axes) -> None:
        quiet(axes)
        for place, group in enumerate(shown):
            if not isinstance(group, int) and (scored := kind.of(group)):
                axes.plot(np.multiply(kind.times, scored[1]), (place, place), color=colour, linewidth=0.9)
                axes.plot(kind.times * scored[0], place, color=colour, marker="o", markersize=3)
        mean = kind.mean(grouped)
        if mean is not None:
            axes.axvline(kind.times * mean, color=FAINT, linewidth=0.8, linestyle=(0, (4, 2)))
        names = [f"{group} others" if isinstance(group, int) else short_name(group.name, 16) for group in shown]
        axes.set_yticks(range(len(shown)), names)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.tick_params(axis="both", labelsize=min(_SMALL, 90 / len(shown)), pad=2)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter("{x:g}%" if kind.unit else "{x:.2f}")

    return kind, draw
