"""A figure of the paper: a title, one legend, and a grid of panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmm.reporting.curves import Curve
from fedmm.reporting.style import FAINT, INK, PLAIN, add_titles, lines_height, new_figure, titles_height
from fedmm.reporting.tables import markdown_lines
from fedmm.reproduction.items import FULL, Item
from fedmm.reproduction.panels import (
    BOUND,
    CROSS,
    SMALL,
    TEXT,
    Panel,
    PanelLine,
    collect_panels,
    draw_panel,
    final_percent,
)
from fedmm.reproduction.results import RunResult, by_cell
from fedmm.reproduction.tables import ABSENT

_WIDTHS = {1: 5.0, 2: 6.0}
_JOURNAL = 7.0
"""Width of a journal's page in inches, used by figures of three columns or more."""
_TITLE = 9.0
_AXIS, _LABEL = 0.5, 0.2
"""Inches above and below a panel for its title and numbers, and for its axis label."""
_SHAPES = {1: 0.62}
_SHAPE = 0.72
"""A panel's height relative to its width."""
_NEVER = "not reached"


def draw_curves(item: Item, runs: Sequence[RunResult]) -> Figure:
    """Draw the figure of an item's runs; form ``rates`` also shows when each curve reaches FedSGDA's final accuracy."""
    panels = collect_panels(item, runs)
    columns = min(item.columns, len(panels))
    rows = -(-len(panels) // columns)
    width = _WIDTHS.get(columns, _JOURNAL)
    across = (width - 0.5) / columns - 0.15
    down = across * _SHAPES.get(columns, _SHAPE)
    rates = [panel_rates(panel) for panel in panels] if item.form == "rates" else []
    letters = [f"({letter}) " for letter in ascii_lowercase] if 1 < len(panels) <= len(ascii_lowercase) else []
    names = [letter + panel.title for letter, panel in zip(letters or [""] * len(panels), panels, strict=False)]
    name_size = min(TEXT, 72 * across / (0.64 * max(map(len, names), default=1)))
    handles = _legend_handles(panels)
    entries = max(int(width / (0.5 + 0.065 * max((len(str(h.get_label())) for h in handles), default=1))), 1)
    entries = min(entries, max(len(handles), 1))

    title, about = item.title, _describe(item, runs)
    height = titles_height(title, about, width, size=_TITLE, small=SMALL) + rows * (down + _AXIS) + _LABEL
    height += -(-len(handles) // entries) * 0.17 + 0.1 + rows * max((rate.height for rate in rates), default=0.0)
    with rc_context(PLAIN):
        figure = new_figure(height, width)
        body = add_titles(figure, title, about, size=_TITLE, small=SMALL)
        if handles:
            body.legend(
                handles=handles, loc="outside upper left", ncols=entries, frameon=False, fontsize=SMALL,
                labelcolor=INK, handlelength=3.4, columnspacing=1.4, borderpad=0, borderaxespad=1.4,
            )  # fmt: skip
        grid = body.subplots(rows, columns, squeeze=False).ravel()
        for position, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
            draw_panel(axes, panel, logarithmic=item.logarithmic, inches=down)
            axes.set_title(names[position], loc="left", fontsize=name_size, weight="bold", color=INK)
            if (rates or position >= len(panels) - columns) and not panel.empty:
                axes.set_xlabel("communication rounds", fontsize=SMALL, color=FAINT, labelpad=2)
            if position % columns:
                axes.tick_params(labelleft=False)
            else:
                axes.set_ylabel("target accuracy (%)", fontsize=SMALL, color=FAINT)
            if rates:
                _mark_rates(axes, rates[position])
                _write_rates(axes, rates[position])
        for axes in grid[len(panels) :]:
            axes.remove()
    return figure


def _legend_handles(panels: Sequence[Panel]) -> list[Line2D]:
    lines = [line for panel in panels for line in panel.lines]
    styles: dict[str, dict[str, Any]] = {
        line.label: {"color": line.stroke.colour, "linestyle": line.stroke.dash, "linewidth": line.stroke.width}
        for line in lines
    }
    if any(run.diverged for line in lines for run in line.runs):
        styles["diverged"] = {"color": INK, "linestyle": "", **CROSS}
    if any(panel.bounds for panel in panels):
        styles["bound"] = BOUND
    return [Line2D([], [], label=label, **style) for label, style in styles.items()]


def _describe(item: Item, runs: Sequence[RunResult]) -> str:
    counts = [len(group) for group in by_cell(run for run in runs if run.role == "method").values()] or [0]
    low, high = min(counts), max(counts)
    seeds = str(high) if low == high else f"{low} to {high}"
    about = ["Target accuracy over communication rounds"]
    about += [f"mean over {seeds} seeds, band from lowest to highest"] if high > 1 else ["one seed"] if high else []
    about += ["grey line: FedSGDA's final accuracy"] if item.form == "rates" else []
    about += [f"scale: {scale}" for scale in sorted({run.scale for run in runs} - {FULL})]
    return "; ".join(about)


# Rates: the round in which each curve first reaches FedSGDA's final accuracy ------------------------------------------


@dataclass(frozen=True)
class Rates:
    """FedSGDA's final accuracy in percent, None if it has none, and the round in which each line first reaches it."""

    level: float | None
    reached: Sequence[tuple[PanelLine, int | None]]

    @property
    def height(self) -> float:
        return (1 + len(self.reached)) * lines_height("", SMALL)


def panel_rates(panel: Panel) -> Rates:
    """Return the rates of a panel."""
    level = final_percent([run for line in panel.lines for run in line.runs if run.algorithm == "fedsgda"])
    return Rates(level, [] if level is None else [(line, first_reach(line.curve, level)) for line in panel.lines])


def first_reach(curve: Curve, level: float) -> int | None:
    """Return the first round in which the mean over seeds is at least ``level`` percent; None if it never is."""
    return next((t for t, value in zip(curve.rounds, curve.mean, strict=True) if value >= level - 1e-9), None)


def _mark_rates(axes: Axes, rates: Rates) -> None:
    """Draw the level as a line, and a dot where each curve reaches it."""
    if rates.level is None:
        return
    axes.axhline(rates.level, color=FAINT, linewidth=0.6, zorder=1.5)
    for line, t in rates.reached:
        if t is not None:
            value = line.curve.mean[line.curve.rounds.index(t)]
            axes.plot(t, value, "o", color=line.stroke.colour, ms=4, mec="white", mew=0.7, zorder=6, clip_on=False)


def _write_rates(axes: Axes, rates: Rates) -> None:
    """Write a line of text for each curve, below the axes."""
    heading = "FedSGDA: not computed" if rates.level is None else f"first reaches {rates.level:.1f} % in round"
    rows: list[tuple[str, str, dict[str, Any]]] = [(heading, "", {"color": FAINT})]
    for line, t in rates.reached:
        style: dict[str, Any] = {"color": line.stroke.colour, "weight": "bold"}
        rows.append((line.label, _NEVER if t is None else f"{t:,}", style))
    for number, (label, reached, look) in enumerate(rows):
        offset = (0, -29 - 72 * number * lines_height("", SMALL))
        common: dict[str, Any] = {"fontsize": SMALL, "va": "top", "annotation_clip": False}
        axes.annotate(label, (0, 0), offset, "axes fraction", "offset points", **common, **look)
        if reached:
            axes.annotate(reached, (1, 0), offset, "axes fraction", "offset points", ha="right", color=INK, **common)


def rates_table(panels: Sequence[Panel]) -> str:
    """Return the rates of all panels as a Markdown table."""
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    lines = [["", "FedSGDA's final (%)", *labels], [":--", "--:", *["--:"] * len(labels)]]
    for panel in panels:
        rates = panel_rates(panel)
        rounds = {line.label: _NEVER if t is None else f"{t:,}" for line, t in rates.reached}
        level = ABSENT if rates.level is None else f"{rates.level:.1f}"
        lines.append([panel.title, level, *(rounds.get(label, ABSENT) for label in labels)])
    return f"{markdown_lines(lines)}\nThe round in which the mean over seeds first reaches FedSGDA's final accuracy.\n"
