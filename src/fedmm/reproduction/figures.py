"""A figure of the paper: a grid of panels below a title and one legend."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from matplotlib.figure import Figure

from fedmm.reporting.style import FAINT, fitted, lines_height, new_figure, place, text_width, write
from fedmm.reproduction.item import Item
from fedmm.reproduction.legend import Legend
from fedmm.reproduction.panels import SMALL, TEXT, Panel, draw_panel, panels_of
from fedmm.reproduction.rates import mark_rates, rates_of, write_rates
from fedmm.reproduction.results import FULL, PaperRun, by_cell

_WIDTHS = {1: 5.0, 2: 6.0}
_JOURNAL = 7.0
"""Inches: the width of a journal's page, taken by figures of three columns or more."""
_TITLE = 9.0
_MARGIN, _LEFT, _RIGHT, _BETWEEN = 0.1, 0.5, 0.12, 0.2
_HEADING, _TICKS, _AXIS_NAME, _BELOW = 0.2, 0.2, 0.17, 0.13
"""Inches: above a panel for its title, and below it for the numbers and the name of its axis, and for nothing."""
_SHAPES = {1: 0.62}
_SHAPE = 0.72
"""A panel's height by its width."""


def draw_curves(item: Item, runs: Sequence[PaperRun]) -> Figure:
    """The figure of an item's runs; form ``rates`` also says when each curve reaches FedSGDA's final accuracy."""
    panels = panels_of(item, runs)
    columns = min(item.columns, len(panels))
    width = _WIDTHS.get(columns, _JOURNAL)
    across = (width - _LEFT - _RIGHT - (columns - 1) * _BETWEEN) / columns
    down = across * _SHAPES.get(columns, _SHAPE)
    rates = [rates_of(panel) for panel in panels] if item.form == "rates" else []

    scratch = new_figure(1.0, width)
    title = fitted(scratch, item.title, width - 2 * _MARGIN, fontsize=_TITLE, weight="bold")
    about = fitted(scratch, _about(item, runs), width - 2 * _MARGIN, fontsize=SMALL)
    legend = Legend(panels, _LEFT, width - _RIGHT, scratch)
    below_title = _MARGIN + lines_height(title, _TITLE)
    legend_top = below_title + lines_height(about, SMALL) + 0.08
    top = legend_top + legend.height + 0.12
    names, name_size = _names(panels, across, scratch)

    unnamed_axes = 0 if rates else len(panels) - columns
    words = max(found.height for found in rates) + _AXIS_NAME if rates else 0.0
    pitch = _HEADING + down + _TICKS + words + _BELOW
    rows = -(-len(panels) // columns)
    figure = new_figure(top + rows * pitch + (0.0 if rates else _AXIS_NAME) + 0.04, width)

    write(figure, _MARGIN, _MARGIN, title, fontsize=_TITLE, weight="bold")
    write(figure, _MARGIN, below_title, about, fontsize=SMALL, color=FAINT)
    legend.draw(figure, legend_top)
    for position, panel in enumerate(panels):
        row, column = divmod(position, columns)
        left, upper = _LEFT + column * (across + _BETWEEN), top + row * pitch
        write(figure, left, upper, names[position], fontsize=name_size, weight="bold")
        axes = place(figure, left, upper + _HEADING, across, down)
        draw_panel(axes, panel, item.logarithmic)
        if position >= unnamed_axes and not panel.empty:
            axes.set_xlabel("communication rounds", fontsize=SMALL, color=FAINT, labelpad=2)
        if column:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel("target accuracy (%)", fontsize=SMALL, color=FAINT)
        if rates:
            mark_rates(axes, rates[position])
            below = upper + _HEADING + down + _TICKS + _AXIS_NAME + 0.02
            write_rates(figure, rates[position], left, below, across)
    return figure


def _names(panels: Sequence[Panel], across: float, scratch: Figure) -> tuple[list[str], float]:
    """The panels' titles, with letters where there are several, and the size of font at which all fit."""
    letters = [f"({letter}) " for letter in ascii_lowercase] if 1 < len(panels) <= len(ascii_lowercase) else []
    names = [letter + panel.title for letter, panel in zip(letters or [""] * len(panels), panels, strict=False)]
    widest = max(text_width(scratch, name, fontsize=TEXT, weight="bold") for name in names)
    return names, TEXT * min(1.0, across / widest)


def _about(item: Item, runs: Sequence[PaperRun]) -> str:
    counts = [len(group) for group in by_cell(run for run in runs if run.role == "method").values()] or [0]
    low, high = min(counts), max(counts)
    seeds = str(high) if low == high else f"{low} to {high}"
    about = ["Target accuracy over communication rounds"]
    about += [f"mean over {seeds} seeds, band from lowest to highest"] if high > 1 else ["one seed"] if high else []
    about += ["grey line: FedSGDA's final accuracy"] if item.form == "rates" else []
    about += [f"scale: {scale}" for scale in sorted({run.scale for run in runs} - {FULL})]
    return "; ".join(about)
