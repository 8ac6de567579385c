"""The figures of a run and of a comparison, written into the folder they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from fedmm.core.signals.validators import BELIEVED
from fedmm.reporting.curves import Curve, column_curve, draw_curve
from fedmm.reporting.read import Comparison, Run, Series, last_values, read_comparison, read_run
from fedmm.reporting.scores import TITLES, is_share, name_of, scores_of
from fedmm.reporting.strips import Plane, boundary_strip, image_strips
from fedmm.reporting.style import (
    AXIS,
    FAINT,
    INK,
    SMALL,
    TEXT,
    Strip,
    Stroke,
    compose,
    limit_percent,
    limit_rounds,
    lines_height,
    quiet,
    spread_apart,
    strokes,
    whole_rounds,
    wrap_text,
)
from fedmm.reporting.tables import comparison_rows, percent

_INNER = 4.2
"""Inches: the height of a panel of curves without its axis."""
_NAME_WIDTH = 2.3
"""Inches that the name of a line may take before it is broken."""
_LEADER = 1.06
"""Where the number at the end of a line stands, in widths of the axes."""
_DISTANCES = {"consensus_gap": "consensus gap", "dual_norm": "dual norm", "drift": "client drift"}
_SOURCE = Stroke(FAINT, (0, (4, 1.6)), 1.6, 3)
_WIDE_RANGE = 50.0
"""A ratio of largest to smallest above which an axis is logarithmic."""


def draw_run(folder: Path | str) -> list[Path]:
    """Write ``rounds.png``: accuracies, consensus gap, dual norm and drift over the rounds, above both domains."""
    run = read_run(folder)
    stopped = "" if run.status == "completed" else f", {run.status}"
    about = f"{run.method}, {run.data}, seed {run.seed}{stopped}"
    rounds = Strip(_INNER + AXIS + 0.2, lambda part: _draw_rounds(part, run))
    return [compose(run.label, about, [rounds, *_domain_strips([run], [run])], run.folder / "rounds.png")]


def draw_comparison(folder: Path | str) -> list[Path]:
    """Write ``comparison.png``: target accuracy over the rounds, above samples of both domains where runs kept any.

    Where no target labels are known, what was measured without them takes its place.
    """
    comparison = read_comparison(folder)
    looks = strokes(comparison.groups())
    curves = [_curve_strip(comparison, looks, column) for column in _choose_columns(comparison)]
    firsts = [runs[0] for runs in comparison.groups().values()]
    strips = [*curves, *_domain_strips(firsts, comparison.runs)]
    return [compose(comparison.title, _describe(comparison), strips, comparison.folder / "comparison.png")]


# A comparison ---------------------------------------------------------------------------------------------------------


def _choose_columns(comparison: Comparison) -> list[str]:
    """Target accuracy; or, where it was never measured, the validators that the rule on adapting looks at.

    Without a target, the score by which the methods are judged.
    """
    measured = {name for run in comparison.runs for record in run.records.values() for name in record}
    if not comparison.has_target:
        return [column for column in scores_of(comparison.metric) if column in measured][:1] or ["source_accuracy"]
    known = [
        column
        for column in ("target_accuracy", *BELIEVED, "source_risk")
        if any(run.series(column).rounds for run in comparison.runs)
    ]
    return ["target_accuracy"] if "target_accuracy" in known or not known else known


def _describe(comparison: Comparison) -> str:
    columns = _choose_columns(comparison)
    what = TITLES.get(columns[0], columns[0].replace("_", " "))
    if comparison.has_target and "target_accuracy" not in columns:
        what = f"no target labels are known: {', '.join(columns).replace('_', ' ')} (no proof of accuracy)"
    counts = [len(runs) for runs in comparison.groups().values()]
    low, high = min(counts), max(counts)
    if high == 1:
        return what
    seeds = str(high) if low == high else f"{low} to {high}"
    return f"{what}, mean over {seeds} seeds; band: lowest to highest"


def _curve_strip(comparison: Comparison, looks: Mapping[str, Stroke], column: str) -> Strip:
    """One line a label, with its final value and name at the line's end."""
    accuracy, groups = is_share(column), comparison.groups()
    curves = {label: column_curve(runs, column, 100.0 if accuracy else 1.0) for label, runs in groups.items()}
    rows = comparison_rows(comparison)
    names = [wrap_text(f"{row.label}\n{row.note}" if row.note else row.label, _NAME_WIDTH) for row in rows]
    inner = max(_INNER, sum(lines_height(name, TEXT) + 0.05 for name in names))

    def draw(part: SubFigure) -> None:
        axes = part.subplots()
        quiet(axes)
        for label, curve in curves.items():
            draw_curve(axes, curve, looks[label])
        limit_rounds(axes, [t for curve in curves.values() for run in curve.runs for t in run.rounds])
        if accuracy:
            limit_percent(axes, [value for curve in curves.values() for run in curve.runs for value in run.values])
        else:
            axes.set_ylabel(TITLES.get(column, column.replace("_", " ")), fontsize=SMALL, color=FAINT)
        ends = [
            (_final_value(groups[row.label], column), name, looks[row.label])
            for row, name in zip(rows, names, strict=True)
        ]
        _name_ends(axes, ends, [curves[row.label].end for row in rows], inner)

    return Strip(inner + AXIS, draw)


def _final_value(runs: Sequence[Run], column: str) -> str:
    """The mean over the seeds that measured it; of target accuracy that of the summaries."""
    known = [run.target_accuracy for run in runs] if column == "target_accuracy" else last_values(runs, column)
    values = [value for value in known if value is not None]
    if not values:
        return percent(None)
    return f"{percent(fmean(values))}%" if is_share(column) else f"{fmean(values):.3f}"


def _name_ends(
    axes: Axes, names: Sequence[tuple[str, str, Stroke]], ends: Sequence[tuple[int, float] | None], inches: float
) -> None:
    """A number and a name for each line, as near to its end as the others leave room, and a leader to them."""
    low, high = axes.get_ylim()
    heights = [(lines_height(name, TEXT) + 0.05) / inches for _, name, _ in names]
    half_line = lines_height("", TEXT) / inches / 2
    below = [(high - end[1]) / (high - low) if end else 1.0 for end in ends]
    edges = spread_apart([edge - half_line for edge in below], heights, 1.0)
    beside = 0.74 * TEXT * max((len(number) for number, _, _ in names), default=0) + 4
    for (number, name, stroke), end, edge in zip(names, ends, edges, strict=True):
        at = (_LEADER, 1 - edge)
        arrow = {"arrowstyle": "-", "color": stroke.colour, "linewidth": 1.1, "linestyle": stroke.dash}
        axes.annotate(
            number,
            xy=end or at,
            xycoords="data" if end else "axes fraction",
            xytext=at,
            textcoords="axes fraction",
            arrowprops={**arrow, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0} if end else None,
            annotation_clip=False,
            va="top",
            fontsize=TEXT,
            weight="bold",
            color=stroke.colour,
        )
        axes.annotate(
            name, at, (beside, 0), "axes fraction", "offset points", va="top", fontsize=TEXT, color=INK,
            annotation_clip=False,
        )  # fmt: skip


def _domain_strips(firsts: Sequence[Run], runs: Sequence[Run]) -> list[Strip]:
    """The boundary of each label's first run for points in the plane, sample images for images, else nothing."""
    planes = [
        Plane(run.label, run.target_accuracy, run.samples, run.boundary)
        for run in firsts
        if run.samples is not None and run.samples.points and run.boundary is not None
    ]
    if planes:
        seeds = {run.seed for run in firsts}
        of_seed = f", seed {seeds.pop()}" if len(seeds) == 1 and len(runs) > len(firsts) else ""
        return [boundary_strip(planes, f"decision boundary after the last round{of_seed}")]
    images = [run.samples for run in runs if run.samples is not None and run.samples.images]
    return image_strips(images[0]) if images else []


# A run ----------------------------------------------------------------------------------------------------------------


def _draw_rounds(part: SubFigure, run: Run) -> None:
    """A large panel of accuracies beside small ones of consensus gap, dual norm and drift, all over the same rounds."""
    title, columns = _main_scores(run)
    grid = part.subplot_mosaic([["accuracy", name] for name in _DISTANCES], width_ratios=[2.2, 1])
    times = len(run.series("rolled_back_to").rounds)
    gone_back = f"; the guard went back at the dotted line{'s' * (times > 1)}" if times else ""
    _entitle(grid["accuracy"], f"{title}{gone_back}")
    _draw_accuracies(grid["accuracy"], run, columns)
    for name, title in _DISTANCES.items():
        axes, series = grid[name], run.series(name)
        logarithmic = _spans_magnitudes(series)
        _entitle(axes, title + (", log scale" if logarithmic else ""))
        _draw_distance(axes, column_curve([run], name), logarithmic)
        limit_rounds(axes, list(run.records))
        axes.xaxis.set_major_locator(whole_rounds(5))
        if axes is not list(grid.values())[-1]:
            axes.tick_params(labelbottom=False)
            axes.set_xlabel("")


def _entitle(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=TEXT, weight="bold", color=INK)


def _draw_accuracies(axes: Axes, run: Run, columns: Mapping[str, str]) -> None:
    """Scores by their names at the ends of their lines."""
    quiet(axes)
    looks = dict(
        zip(columns, (Stroke(strokes({run.label: [run]})[run.label].colour, "-", 2.6, 3), _SOURCE), strict=False)
    )
    share = all(map(is_share, columns.values()))
    curves = {name: column_curve([run], column, 100.0 if share else 1.0) for name, column in columns.items()}
    measured = {name: curve for name, curve in curves.items() if curve.rounds}
    for name, curve in measured.items():
        draw_curve(axes, curve, looks[name])
    for t in run.series("rolled_back_to").rounds:
        axes.axvline(t, color=FAINT, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
    if share:
        limit_percent(axes, [value for curve in measured.values() for value in curve.mean])
    low, high = axes.get_ylim()
    limit_rounds(axes, list(run.records))
    if not measured:
        _write_inside(axes, "not measured in any round")
    height = (lines_height("\n", TEXT) + 0.08) / _INNER
    wanted = [(high - curve.mean[-1]) / (high - low) - height / 2 for curve in measured.values()]
    edges = spread_apart(wanted, [height] * len(wanted), 1.0)
    for (name, curve), edge in zip(measured.items(), edges, strict=True):
        words = f"{name}\n{curve.mean[-1]:.1f}%" if share else f"{name}\n{curve.mean[-1]:.3f}"
        style: dict[str, Any] = {"fontsize": TEXT, "color": looks[name].colour, "weight": "bold"}
        axes.text(1.02, 1 - edge, words, transform=axes.transAxes, va="top", **style)


def _main_scores(run: Run) -> tuple[str, dict[str, str]]:
    """What the large panel shows, in words, and its columns by the names of their lines.

    Without a target, the score by which the model is judged, with accuracy where that is in percent too.
    """
    if run.has_target:
        return "accuracy", {"target": "target_accuracy", "source": "source_accuracy"}
    known = [column for column in scores_of(run.metric) if run.series(column).rounds][:1] or ["source_accuracy"]
    rows, _, _ = known[0].partition("_")
    known += [f"{rows}_accuracy"] if known == [f"{rows}_worst_accuracy"] else []
    where = "test rows" if rows == "source" else "rows set aside"
    return f"{name_of(known[-1])} on {where}", {name_of(column): column for column in known}


def _draw_distance(axes: Axes, curve: Curve, logarithmic: bool) -> None:
    quiet(axes)
    if not any(curve.mean):
        axes.set_yticks([])
        _write_inside(axes, "0 in every round" if curve.mean else "not measured in any round")
        return
    draw_curve(axes, curve, Stroke(INK, "-", 1.6, 3))
    if logarithmic:
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.08 * max(curve.mean))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
    axes.yaxis.set_major_formatter("{x:g}")


def _spans_magnitudes(series: Series) -> bool:
    positive = [value for value in series.values if value > 0]
    return bool(positive) and max(positive) > _WIDE_RANGE * min(positive)


def _write_inside(axes: Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=TEXT)
