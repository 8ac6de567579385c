"""The report on paper: small panels for a column of text, as a PDF of several pages or one PNG of the main ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmm.core.files import atomic_write
from fedmm.reporting.html.bands import Band, column_band
from fedmm.reporting.html.collect import Entry, Material
from fedmm.reporting.html.colours import method_strokes
from fedmm.reporting.html.costs import cumulative_megabytes
from fedmm.reporting.html.headline import choice_of, chosen_round, spread
from fedmm.reporting.html.maps import Maps
from fedmm.reporting.html.metrics import COLUMNS
from fedmm.reporting.read import Array
from fedmm.reporting.style import FAINT, INK, RULE, Stroke, new_figure, place, quiet, save, whole_rounds, write

_WIDTH, _MARGIN, _ACROSS = 7.0, 0.25, 2
"""Inches, and panels beside each other: each is then as wide as a column of text."""
_PANEL, _INNER, _LEFT, _GAP = 2.35, 1.75, 0.48, 0.2
_TEXT, _SMALL, _TITLE = 8.0, 7.0, 10.5
_DPI = 300
_ROWS_A_PAGE, _MOST_NAMES, _MOST_MAPS, _NUMBERED = 3, 12, 4, 12
_SHADE = LinearSegmentedColormap.from_list("shares", ("#FFFFFF", "#0B4F8A"))


class Panel(NamedTuple):
    """A part of a page, and whether it is one of the main ones."""

    title: str
    draw: Callable[[Axes], None]
    main: bool = False


def write_pdf(material: Material, path: Path) -> Path:
    """Write all panels, six a page, below a table of the results."""
    panels = _panels(material)
    first, later = (_ROWS_A_PAGE - 1) * _ACROSS, _ROWS_A_PAGE * _ACROSS
    pages = [panels[:first], *(panels[at : at + later] for at in range(first, len(panels), later))]
    with (
        atomic_write(path) as partial,
        rc_context({"pdf.fonttype": 42, "font.size": _TEXT}),
        PdfPages(partial, metadata={"CreationDate": None, "Title": material.title}) as file,
    ):
        for number, page in enumerate(pages):
            file.savefig(_page(material, page, table=number == 0))
    return path


def write_png(material: Material, path: Path) -> Path:
    """Write the main panels as one picture."""
    main = [panel for panel in _panels(material) if panel.main]
    with rc_context({"pdf.fonttype": 42, "font.size": _TEXT}):
        return save(_page(material, main, table=False), path, dpi=_DPI)


def _page(material: Material, panels: Sequence[Panel], *, table: bool) -> Figure:
    cells = _cells(material) if table else []
    names = [method.label for method in material.methods]
    legend = 0.2 * (1 + (min(len(names), _MOST_NAMES) - 1) // 4) + 0.12 if len(names) > 1 else 0.0
    head = _MARGIN + 0.32 + (0.18 * len(cells) + 0.25 if cells else 0.0)
    rows = (len(panels) + _ACROSS - 1) // _ACROSS
    figure = new_figure(head + legend + rows * (_PANEL + _GAP) + _MARGIN, _WIDTH)
    write(figure, _MARGIN, _MARGIN, material.title[:110], fontsize=_TITLE, weight="bold")
    if cells:
        _table(figure, cells, _MARGIN + 0.36)
    if legend:
        _legend(figure, material, head)
    width = (_WIDTH - 2 * _MARGIN - (_ACROSS - 1) * _GAP) / _ACROSS
    for number, panel in enumerate(panels):
        row, column = divmod(number, _ACROSS)
        left, top = _MARGIN + column * (width + _GAP), head + legend + row * (_PANEL + _GAP)
        write(figure, left, top, panel.title, fontsize=_TEXT, weight="bold")
        axes = place(figure, left + _LEFT, top + 0.2, width - _LEFT - 0.05, _INNER)
        panel.draw(axes)
    return figure


def _legend(figure: Figure, material: Material, top: float) -> None:
    handles = [
        Line2D([], [], color=stroke.colour, linestyle=stroke.dash, linewidth=1.6, label=method.label[:40])
        for method, stroke in zip(material.methods, method_strokes(material), strict=True)
    ]
    figure.legend(
        handles=handles[:_MOST_NAMES],
        loc="upper left",
        bbox_to_anchor=(_MARGIN / _WIDTH, 1 - top / figure.get_figheight()),
        ncols=min(4, len(handles)),
        frameon=False,
        fontsize=_SMALL + 0.5,
        labelcolor=INK,
        borderpad=0,
        borderaxespad=0,
    )


def _cells(material: Material) -> list[list[str]]:
    """Headings, then a row for each method; validators stand for accuracies where no target labels are known."""
    labelled = any(run.target_accuracy is not None for method in material.methods for run in method.runs)
    columns = ("target_information", "target_bnm", "source_risk")
    measured = ("target, last (%)", "chosen, no labels", "oracle") if labelled else columns
    rows = [["method", "seeds", *measured, "MB", "seconds"]]
    for method in material.methods:
        chosen = [found for _, found in map(choice_of, method.entries) if found]
        oracle = [found for run in method.runs if (found := chosen_round(run, "target_accuracy"))]
        megabytes = np.mean([(run.bytes_up + run.bytes_down) / 1e6 for run in method.runs])
        accuracies = (
            [run.target_accuracy for run in method.runs],
            [found.accuracy for found in chosen],
            [found.accuracy for found in oracle],
        )
        last = [[s.values[-1] for run in method.runs if (s := run.series(name)).rounds] for name in columns]
        rows.append(
            [
                method.label[:34],
                str(len(method.runs)),
                *(map(spread, accuracies) if labelled else [f"{np.mean(each):.3g}" if each else "-" for each in last]),
                f"{megabytes:.1f}",
                f"{np.mean([run.seconds for run in method.runs]):.1f}",
            ]
        )
    return rows


def _table(figure: Figure, cells: Sequence[Sequence[str]], top: float) -> None:
    rights = np.array([0.0, 0.34, 0.50, 0.68, 0.81, 0.90, 1.0]) * (_WIDTH - 2 * _MARGIN) + _MARGIN
    for number, row in enumerate(cells):
        head = {"color": FAINT} if number == 0 else {}
        for column, cell in enumerate(row):
            side = "left" if column == 0 else "right"
            left = _MARGIN if column == 0 else float(rights[column])
            write(figure, left, top + 0.18 * number, cell, fontsize=_TEXT, ha=side, **head)


def _panels(material: Material) -> list[Panel]:
    strokes = method_strokes(material)
    panels = []
    for column, (title, unit) in COLUMNS.items():
        times = 100.0 if unit == "%" else 1.0
        bands = [(each, stroke) for each, stroke in zip(_bands(material, column, times), strokes, strict=True) if each]
        if bands:
            main = column in ("target_accuracy", "target_information", "consensus_gap")
            panels.append(Panel(title, _lines(bands, unit), main))
    by_bytes = [(found, stroke) for found, stroke in zip(cumulative_megabytes(material), strokes, strict=True) if found]
    if by_bytes:
        panels.append(Panel("target accuracy by megabytes, up and down", _by_bytes(by_bytes), main=True))
    return panels + _maps(material) + _confusions(material)


def _bands(material: Material, column: str, times: float) -> list[Band | None]:
    return [column_band(method.runs, column, times) for method in material.methods]


def _lines(bands: Sequence[tuple[Band, Stroke]], unit: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        _calm(axes)
        for band, stroke in bands:
            _line(axes, band.rounds, band, stroke)
            for tail in band.tails:
                axes.plot(*tail, color=stroke.colour, linestyle=stroke.dash, linewidth=0.5, alpha=0.7)
        axes.set_xlabel("round", fontsize=_SMALL, color=FAINT)
        axes.xaxis.set_major_locator(whole_rounds(6))
        if unit == "%":
            axes.yaxis.set_major_formatter("{x:g}%")

    return draw


def _by_bytes(lines: Sequence[tuple[tuple[list[float], Band], Stroke]]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        _calm(axes)
        for (megabytes, band), stroke in lines:
            _line(axes, megabytes, band, stroke)
        axes.set_xlabel("MB", fontsize=_SMALL, color=FAINT)
        axes.yaxis.set_major_formatter("{x:g}%")

    return draw


def _line(axes: Axes, x: Sequence[float], band: Band, stroke: Stroke) -> None:
    """The mean of the seeds, and their range behind it."""
    if band.runs > 1:
        axes.fill_between(x, band.low, band.high, color=stroke.colour, alpha=0.16, linewidth=0)
    marker = "o" if len(x) == 1 else ""
    axes.plot(
        x,
        band.mean,
        color=stroke.colour,
        linestyle=stroke.dash,
        linewidth=0.6 * stroke.width,
        marker=marker,
        zorder=stroke.rank,
    )


def _calm(axes: Axes) -> None:
    quiet(axes)
    axes.tick_params(axis="both", labelsize=_SMALL, pad=2)
    axes.tick_params(axis="x", length=2)


def _maps(material: Material) -> list[Panel]:
    maps = Maps()
    panels: list[Panel] = []
    for method in _first_methods(material):
        found = maps.of(method)
        for moment, words in (("before", "before training"), ("after", "after the last round")):
            if moment in found:
                title = f"features {words}: {method.run.label[:26]}"
                panels.append(Panel(title, _map(found[moment], method.exhibits["map_domain"]), main=not panels[1:]))
    return panels


def _first_methods(material: Material) -> list[Entry]:
    """The first runs of some methods; a FedMM before others."""
    firsts = [method.first for method in material.methods]
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


def _confusions(material: Material) -> list[Panel]:
    panels = []
    for entry in _first_methods(material):
        counts = entry.exhibits.get("confusion_target")
        if counts is not None and counts.ndim == 2 and counts.sum() > 0:
            panels.append(Panel(f"target classes: {entry.run.label[:30]}", _matrix(counts, entry)))
    return panels


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
