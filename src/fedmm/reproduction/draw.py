"""Draw an item's picture and write its page from the results of its runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedmm.core.files import atomic_write
from fedmm.reporting.fields import finite
from fedmm.reporting.style import FAINT, INK, PLAIN, lines_height, new_figure, save, wrap_text
from fedmm.reproduction.figures import draw_curves, rates_table
from fedmm.reproduction.items import FULL, Item, read_item
from fedmm.reproduction.panels import collect_panels
from fedmm.reproduction.results import RunResult, by_cell, read_results, select_runs
from fedmm.reproduction.tables import Number, TableGrid, accuracy_grids, markdown, rounds_grids, runs_table

_ENOUGH_SEEDS = 3
"""Fewest seeds for a meaningful spread."""


def draw_item(item_folder: Path | str, results: Path | str, out: Path | str) -> list[Path]:
    """Write a figure or table of the paper from its results, as ``<item>.svg``, ``.png`` and ``.md`` in ``out``.

    item_folder: contains ``item.toml``. results: JSON lines, one per finished run; the picture and the page name
    missing runs. Returns the files written.
    """
    item, out = read_item(item_folder), Path(out)
    runs = select_runs(read_results(results), item, Path(results))
    figure, body = _figure(item, runs) if item.form in ("curves", "rates") else _table(item, runs)
    page = out / f"{item.name}.md"
    parts = [
        f"# {item.title}\n",
        f"![{item.title}]({item.name}.svg)\n",
        body,
        _describe_runs(item, runs),
        _list_missing(item, runs),
    ]
    with atomic_write(page) as partial:
        partial.write_text("\n".join(parts), "utf-8")
    return [save(figure, out / f"{item.name}.svg"), save(figure, out / f"{item.name}.png"), page]


def _figure(item: Item, runs: Sequence[RunResult]) -> tuple[Figure, str]:
    tables = [runs_table(runs, item.panels, item.curves, item.panel_titles)]
    if item.form == "rates":
        tables.insert(0, rates_table(collect_panels(item, runs)))
    return draw_curves(item, runs), "\n".join(tables)


def _table(item: Item, runs: Sequence[RunResult]) -> tuple[Figure, str]:
    grids = accuracy_grids(item, runs) if item.form == "accuracy_table" else rounds_grids(item, runs)
    return draw_tables(item.title, grids), "\n".join(markdown(grid) for grid in grids)


# The text below: how it was made, on which hardware, and what is missing ----------------------------------------------


def _describe_runs(item: Item, runs: Sequence[RunResult]) -> str:
    """Return a Markdown section with the commands, runs, hardware, versions, seconds and commits of the runs."""
    commands = _distinct(runs, "command") or [f"fedmm reproduce {item.runs_of}"]
    lines = ["## How it was made", "", *(f"    {command}" for command in commands), ""]
    lines += [f"- {name}: {words}" for name, words in _facts(runs).items() if words]
    return "\n".join(lines) + "\n"


def _list_missing(item: Item, runs: Sequence[RunResult]) -> str:
    """Return a Markdown section on what was not computed, diverged, or has a caveat."""
    cells = by_cell(runs)
    lines = []
    for panel in item.panels:
        expected = [curve for name, curve in item.expected() if name == panel]
        absent = [curve for curve in expected if (panel, curve) not in cells]
        if absent:
            what = "everything" if len(absent) == len(expected) else ", ".join(f"`{curve}`" for curve in absent)
            lines.append(f"- {item.panel_title(panel)}: {what} not computed")
    for role in ("method", "bound"):
        groups = [group for group in cells.values() if group[0].role == role]
        wanted = min(_ENOUGH_SEEDS, max((len(group) for group in groups), default=0))
        few = {group[0].cell for group in groups if len(group) < wanted}
        lines += [f"- fewer than {wanted} seeds: {_cells_in_words(item, few)}"] if few else []
    lines += [f"- {_divergence(item, run)}" for run in runs if run.diverged]
    lines += [f"- {words}: {_list_cells(item, runs, words)}" for words in _distinct(runs, "caveat")]
    return "## What is missing\n\n" + ("\n".join(lines) if lines else "Nothing: all runs completed.") + "\n"


def _list_cells(item: Item, runs: Sequence[RunResult], caveat: str) -> str:
    """Name the cells with runs that have a caveat."""
    cells = {run.cell for run in runs if run.provenance.get("caveat") == caveat}
    return _cells_in_words(item, cells)


def _cells_in_words(item: Item, cells: Collection[tuple[str, str]]) -> str:
    """Name the curves by panel, in the order of the item."""
    ordered = [cell for cell in item.expected() if cell in cells]
    by_panel = {panel: [f"`{curve}`" for name, curve in ordered if name == panel] for panel, _ in ordered}
    return "; ".join(f"{item.panel_title(panel)} {', '.join(curves)}" for panel, curves in by_panel.items())


def _divergence(item: Item, run: RunResult) -> str:
    measured = run.series("target_accuracy").rounds
    last = f"; last measured in round {measured[-1]:,}" if measured else ""
    return f"{item.panel_title(run.panel)}, {run.label}, seed {run.seed}: diverged{last}"


def _facts(runs: Sequence[RunResult]) -> dict[str, str]:
    seconds = [value for run in runs if (value := finite(run.provenance.get("seconds"))) is not None]
    seeds = sorted({run.seed for run in runs})
    dates = sorted(_distinct(runs, "date"))
    scales = sorted({run.scale for run in runs} - {FULL})
    return {
        "runs": f"{len(runs):,}" + (f", seeds {', '.join(map(str, seeds))}" if seeds else ""),
        "scale": ", ".join(scales) + " (not the paper's size)" if scales else "",
        "seconds": f"{sum(seconds):,.0f} in all, {_format_range(seconds)} a run" if seconds else "",
        "hardware": "; ".join(_distinct(runs, "hardware")),
        "versions": "; ".join(_distinct(runs, "versions")),
        "precision": ", ".join(_distinct(runs, "precision")),
        "engine": "; ".join(_distinct(runs, "engine")),
        "commit": ", ".join(f"`{commit}`" for commit in _distinct(runs, "commit")),
        "dates": " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "",
    }


def _format_range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:,.1f}" for value in (min(values), max(values))))


def _distinct(runs: Sequence[RunResult], name: str) -> list[str]:
    """Return the different values of a fact about the runs, in order of the runs."""
    given = [run.provenance.get(name) for run in runs]
    return list(dict.fromkeys(words for value in given if (words := _words(value))))


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list | tuple):
        return " ".join(_words(part) for part in value)
    return "" if value is None else str(value)


_TITLE, _TEXT, _SMALL = 9.0, 8.0, 6.8
_MARGIN, _GROUP_GAP, _LEAST_WIDTH = 0.1, 0.14, 5.0
_LETTER = 0.6
"""Width of a character relative to the font size."""
_ROW, _BELOW = lines_height("", _TEXT) + 0.05, lines_height("", _SMALL) - 0.02
"""Heights in inches of a row, and of the smaller line below a number."""


def draw_tables(title: str, grids: Sequence[TableGrid]) -> Figure:
    """Draw the grids of a table, one below the other, as wide as the widest needs."""
    edges = [_column_edges(grid) for grid in grids]
    width = max(_LEAST_WIDTH, *(spans[-1][1] + 2 * _MARGIN for spans in edges))
    title = wrap_text(title, width, _TITLE)
    notes = [wrap_text("\n".join(f"{note}." for note in grid.notes), width, _SMALL) for grid in grids]
    heights = [_grid_height(grid) for grid in grids]
    top = _MARGIN + lines_height(title, _TITLE) + 0.08
    bottom = top + sum(heights) + sum(lines_height(note, _SMALL) + 0.25 for note in notes)
    with rc_context(PLAIN):
        figure = new_figure(bottom, width)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1), xlim=(-_MARGIN, width - _MARGIN), ylim=(bottom, 0))
        axes.set_axis_off()
        _write(axes, 0, _MARGIN, title, fontsize=_TITLE, weight="bold")
        for grid, columns, note, height in zip(grids, edges, notes, heights, strict=True):
            _draw_grid(axes, grid, columns, top)
            _write(axes, 0, top + height + 0.06, note, fontsize=_SMALL, color=FAINT)
            top += height + lines_height(note, _SMALL) + 0.25
    return figure


def _below(grid: TableGrid, number: Number) -> str:
    share = f"[{number.share}]" if number.share else ""
    return " ".join(part for part in (share, grid.paper(number)) if part)


def _column_edges(grid: TableGrid) -> list[tuple[float, float]]:
    """Return the left and right edge of each column in inches; a group's columns are at least as wide as its name."""
    widths = []
    for i, column in enumerate(grid.columns):
        numbers = [row.numbers[i] for row in grid.rows]
        letters = max(len(column.heading), *(len(grid.ours(number)) for number in numbers))
        below = max(len(_below(grid, number)) for number in numbers)
        members = sum(other.group == column.group for other in grid.columns)
        sizes = (letters * _TEXT, below * _SMALL, len(column.group) * _TEXT / members)
        widths.append(_LETTER * max(sizes) / 72 + 0.1)
    left = _LETTER * _TEXT / 72 * max(len(row.title) for row in grid.rows) + 0.13
    edges = []
    for i, width in enumerate(widths):
        left += _GROUP_GAP if i and grid.columns[i].group != grid.columns[i - 1].group else 0.0
        edges.append((left, left + width))
        left += width
    return edges


def _head_height(grid: TableGrid) -> float:
    return _ROW * (2 if any(column.group for column in grid.columns) else 1) + 0.04


def _row_heights(grid: TableGrid) -> list[float]:
    return [_ROW + _BELOW * any(_below(grid, number) for number in row.numbers) for row in grid.rows]


def _grid_height(grid: TableGrid) -> float:
    return _head_height(grid) + sum(_row_heights(grid)) + 0.1


def _draw_grid(axes: Axes, grid: TableGrid, edges: Sequence[tuple[float, float]], top: float) -> None:
    """Draw headings, then the rows; if there are several, the last is the average."""
    right = edges[-1][1]
    middles = [(left + end) / 2 for left, end in edges]
    bottom = top + _head_height(grid)
    axes.hlines([top, bottom - 0.02], 0, right, INK, linewidths=[1.0, 0.6])
    for group in dict.fromkeys(column.group for column in grid.columns if column.group):
        own = [edge for edge, column in zip(edges, grid.columns, strict=True) if column.group == group]
        _write(axes, (own[0][0] + own[-1][1]) / 2, top + 0.03, group, weight="bold", ha="center")
        axes.hlines(top + _ROW, own[0][0] + 0.03, own[-1][1] - 0.03, INK, linewidths=0.5)
    for middle, column in zip(middles, grid.columns, strict=True):
        _write(axes, middle, bottom - _ROW, column.heading, ha="center")
    top = bottom
    for position, (row, height) in enumerate(zip(grid.rows, _row_heights(grid), strict=True)):
        average = len(grid.rows) > 1 and position == len(grid.rows) - 1
        if average:
            axes.hlines(top + 0.01, 0, right, INK, linewidths=0.6)
            top += 0.04
        _write(axes, 0, top + 0.03, row.title, weight="bold" if average else "normal")
        for middle, number in zip(middles, row.numbers, strict=True):
            style = {"color": INK if number.value is not None else FAINT, "weight": "bold" if number.best else "normal"}
            _write(axes, middle, top + 0.03, grid.ours(number), ha="center", **style)
            _write(axes, middle, top + _ROW - 0.055, _below(grid, number), fontsize=_SMALL, color=FAINT, ha="center")
        top += height
    axes.hlines(top + 0.03, 0, right, INK, linewidths=1.0)


def _write(axes: Axes, x: float, y: float, words: str, **style: Any) -> None:
    axes.text(x, y, words, **{"fontsize": _TEXT, "color": INK, "va": "top", "linespacing": 1.3, **style})
