"""One panel of a figure: target accuracy (%) over communication rounds, with bounds, crosses and axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, NullLocator

from fedmm.reporting.curves import Curve, column_curve, draw_curve
from fedmm.reporting.style import (
    FAINT,
    INK,
    RULE,
    Stroke,
    family_colours,
    lines_height,
    spread_apart,
    strokes,
    whole_rounds,
)
from fedmm.reproduction.items import Item, in_order
from fedmm.reproduction.results import RunResult, by_cell

TEXT, SMALL, TINY = 8.0, 7.0, 6.0
"""Font sizes in points, for a figure of a journal's width."""
BOUND: dict[str, Any] = {"color": INK, "linewidth": 0.7, "linestyle": (0, (4, 3))}
CROSS: dict[str, Any] = {"marker": "X", "markersize": 6.5, "markeredgecolor": "white", "markeredgewidth": 0.7}

_DASHES: tuple[Any, ...] = (
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.4, 1.2, 1.4)),
    (0, (3, 1.2)),
    (0, (6, 1.4, 1.2, 1.4, 1.2, 1.4)),
    (0, (9, 2)),
)
_OURS, _OTHERS = 1.6, 1.15
"""Line widths in points."""


@dataclass(frozen=True)
class PanelLine:
    """The runs of one method in one panel, drawn as one line."""

    label: str
    runs: Sequence[RunResult]
    curve: Curve
    stroke: Stroke


@dataclass(frozen=True)
class Panel:
    """The content of a panel. bounds: the final accuracy (%) of each bound, by label."""

    title: str
    lines: Sequence[PanelLine]
    bounds: Mapping[str, float]

    @property
    def empty(self) -> bool:
        return not self.lines and not self.bounds

    @property
    def rounds(self) -> list[int]:
        """All evaluated rounds."""
        return [t for line in self.lines for run in line.curve.runs for t in run.rounds]


def collect_panels(item: Item, runs: Sequence[RunResult]) -> list[Panel]:
    """Return the panels of an item, in its order; a label looks the same in all of them."""
    curves = in_order((run.curve for run in runs), item.curves)
    cells = by_cell(runs)
    looks = paper_strokes(
        sorted((run for run in runs if run.role == "method"), key=lambda run: curves.index(run.curve))
    )
    panels = []
    for panel in dict.fromkeys([*item.panels, *sorted(run.panel for run in runs)]):
        groups = [cells[panel, curve] for curve in curves if (panel, curve) in cells]
        methods = [group for group in groups if group[0].role == "method"]
        finals = {group[0].label: final_percent(group) for group in groups if group[0].role == "bound"}
        lines = [
            PanelLine(group[0].label, group, column_curve(group, "target_accuracy", 100.0), looks[group[0].label])
            for group in methods
        ]
        bounds = {label: value for label, value in finals.items() if value is not None}
        panels.append(Panel(item.panel_title(panel), lines, bounds))
    return panels


def paper_strokes(runs: Sequence[RunResult]) -> dict[str, Stroke]:
    """Choose a stroke for each label, in the order of the runs; dashes tell labels apart without colour.

    Methods keep their colour in all figures. Three or more labels, all of one method, run through a colour map with
    even steps of lightness. The first FedMM, or else the first label, is the solid line.
    """
    groups: dict[str, list[RunResult]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    algorithms = {label: group[0].algorithm for label, group in groups.items()}
    family = len(set(algorithms.values())) == 1 and len(groups) > 2
    colours = dict(zip(groups, family_colours(len(groups)), strict=True)) if family else {}
    ours = next((label for label, name in algorithms.items() if name == "fedmm"), next(iter(groups), ""))
    dashes = iter(_DASHES * len(groups))
    return {
        label: Stroke(
            colours.get(label, stroke.colour),
            "-" if label == ours else next(dashes),
            _OURS if algorithms[label] == "fedmm" and not family else _OTHERS,
            stroke.rank,
        )
        for label, stroke in strokes(groups).items()
    }


def final_percent(runs: Sequence[RunResult]) -> float | None:
    """Return the final accuracy in percent, averaged over the runs that have one; None if none has."""
    known = [100 * run.target_accuracy for run in runs if run.target_accuracy is not None]
    return fmean(known) if known else None


def draw_panel(axes: Axes, panel: Panel, *, logarithmic: bool, inches: float) -> None:
    """Draw the lines, a cross where a run diverged, and the bounds; an empty panel says so.

    inches: approximate height of the axes.
    """
    _frame(axes)
    if panel.empty:
        axes.text(0.5, 0.5, "not computed", transform=axes.transAxes, ha="center", va="center", color=FAINT, size=TEXT)
        axes.set_xticks([])
        return
    for line in panel.lines:
        draw_curve(axes, line.curve, line.stroke)
        for run in line.runs:
            if run.diverged:
                _draw_divergence(axes, run, line.stroke)
    _limit_rounds(axes, panel.rounds or [1], logarithmic)
    _draw_bounds(axes, panel, inches)


def _frame(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.spines[["left", "bottom"]].set_linewidth(0.6)
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL, labelcolor=FAINT, color=FAINT, length=2.5, width=0.6, pad=2.5)
    axes.set_ylim(0, 100)
    axes.set_yticks(range(0, 101, 20))


def _draw_divergence(axes: Axes, run: RunResult, stroke: Stroke) -> None:
    """Draw the run alone as a thin line, with a cross at its last evaluated round."""
    rounds, fractions = run.series("target_accuracy")
    if rounds:
        values = [100 * value for value in fractions]
        axes.plot(rounds, values, color=stroke.colour, linewidth=0.7, alpha=0.7, zorder=stroke.rank)
        axes.plot(rounds[-1], values[-1], color=stroke.colour, linestyle="", zorder=6, clip_on=False, **CROSS)


def _limit_rounds(axes: Axes, rounds: Sequence[int], logarithmic: bool) -> None:
    """Set up the axis of rounds; align a label at its right end so that it stays clear of the next panel."""
    last = max(rounds)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(0.9 * max(min(rounds), 1), 1.1 * max(last, 2))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, last)
    low, high = axes.get_xlim()
    locator = LogLocator(numticks=6) if logarithmic else whole_rounds(4)
    ticks = [float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    for tick, label in zip(ticks, axes.xaxis.get_ticklabels(), strict=True):
        along = axes.transAxes.inverted().transform(axes.transData.transform((tick, 0.0)))[0]
        label.set_horizontalalignment("right" if along > 0.97 else "center")


def _draw_bounds(axes: Axes, panel: Panel, inches: float) -> None:
    """Draw thin dashed lines, labelled at the right: above the line, or below if fewer curves pass there."""
    bounds = panel.bounds
    height = 100 * lines_height("", TINY) / inches
    late = [
        value
        for line in panel.lines
        for t, value in zip(line.curve.rounds, line.curve.mean, strict=True)
        if t > 0.6 * max(panel.rounds)
    ]
    wanted = []
    for value in bounds.values():
        above = sum(value <= other < value + height for other in late)
        below = sum(value - height < other < value for other in late)
        wanted.append(100 - value + 0.1 * height if below < above else 100 - value - 1.05 * height)
    edges = spread_apart(wanted, [height] * len(bounds), 100.0)
    for (label, value), edge in zip(bounds.items(), edges, strict=True):
        axes.axhline(value, zorder=2.5, **BOUND)
        words = f"{label} {value:.1f}"
        base = 1 - (edge + 0.8 * height) / 100
        style: dict[str, Any] = {"ha": "right", "va": "baseline", "fontsize": TINY, "color": INK, "zorder": 7}
        text = axes.text(0.99, base, words, transform=axes.transAxes, **style)
        text.set_path_effects([withStroke(linewidth=2.0, foreground="white")])
