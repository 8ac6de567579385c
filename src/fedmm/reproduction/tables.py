"""A table of the paper: tasks in rows, methods and objectives in columns, our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from fedmm.reporting.tables import markdown_lines
from fedmm.reproduction.items import Cell, Item, in_order
from fedmm.reproduction.results import RunResult, by_cell, read_results

ABSENT, DAGGER = "–", "†"  # noqa: RUF001 - a dash as wide as a number
_METHODS = {
    "fedavg_gda": "FedAvgGDA",
    "fedprox_gda": "FedProxGDA",
    "fedsgda": "FedSGDA",
    "fedmm": "FedMM",
    "scaffold_gda": "SCAFFOLD-GDA",
}
CLOSE = 0.01
"""A run counts as trained from the first round with an accuracy this close to its final one, or higher."""


class Style(NamedTuple):
    """How to write numbers: our number and its spread with the same decimals, and the paper's."""

    decimals: Callable[[float], int]
    paper: Callable[[float], str]


_PERCENT = Style(decimals=lambda _: 1, paper=lambda value: f"{value:.1f}")
_HUNDREDS = Style(decimals=lambda value: 2 if value < 1 else 1, paper=lambda value: f"{value:.1f}".removesuffix(".0"))


@dataclass(frozen=True)
class Number:
    """One cell. value: mean over seeds, None if there is none; spread: over seeds (std with n - 1), None below two.

    paper: the paper's own number. share: of an average, ``4 of 6`` if it is not over all rows.
    """

    value: float | None = None
    spread: float | None = None
    paper: float | None = None
    diverged: bool = False
    share: str = ""
    best: bool = False


class TableColumn(NamedTuple):
    """A curve, and the two lines of its heading."""

    group: str
    heading: str
    curve: str


class TableRow(NamedTuple):
    """A task, or the average of all."""

    title: str
    numbers: list[Number]


@dataclass(frozen=True)
class TableGrid:
    """Rows and columns, how to write numbers, and the notes below."""

    columns: list[TableColumn]
    rows: list[TableRow]
    style: Style
    notes: list[str]

    def ours(self, number: Number) -> str:
        """Return our number as text, without the paper's."""
        if number.value is None:
            return "diverged" if number.diverged else ABSENT
        decimals = self.style.decimals(number.value)
        spread = "" if number.spread is None else f" ± {number.spread:.{decimals}f}"
        return f"{number.value:.{decimals}f}{spread}{DAGGER if number.diverged else ''}"

    def paper(self, number: Number) -> str:
        """Return the paper's number in brackets, or an empty string."""
        return "" if number.paper is None else f"({self.style.paper(number.paper)})"


def accuracy_grids(item: Item, runs: Sequence[RunResult]) -> list[TableGrid]:
    """Return final target accuracies in percent: of the methods and, in a second grid, of any bounds."""
    notes = [
        "Target accuracy (%) after the last round, mean over seeds"
        + (" ± standard deviation" if _several(runs) else "")
        + "; in brackets the paper's. Bold: the best of ours for a task and objective. The paper's averages are"
        " computed from its rows"
    ]
    methods = _grid(item, runs, method_columns(item, runs), _percent, item.paper_accuracy, _PERCENT, notes)
    grids = [replace(methods, rows=_with_best(methods))]
    bounds = bound_columns(item, runs)
    if bounds:
        about = ["Bounds, which say what is possible: target accuracy (%), mean over seeds"]
        grid = _grid(item, runs, bounds, _percent, item.paper_accuracy, _PERCENT, about)
        grids.append(replace(grid, notes=[note for note in grid.notes if note not in methods.notes]))
    return grids


def rounds_grids(item: Item, runs: Sequence[RunResult]) -> list[TableGrid]:
    """Return hundreds of rounds until a run is trained."""
    notes = [
        "Communication rounds (×100) until a run is trained: the first evaluated round whose target accuracy is within"  # noqa: RUF001
        f" {100 * CLOSE:g} point of the run's final accuracy, or above; mean over seeds"
        + (" ± standard deviation" if _several(runs) else "")
        + ". In brackets the paper's, which does not say when a run counts as trained; its averages are computed from"
        " its rows"
    ]
    return [_grid(item, runs, method_columns(item, runs), count_rounds_needed, item.paper_rounds, _HUNDREDS, notes)]


def count_rounds_needed(run: RunResult) -> float | None:
    """Return hundreds of rounds until the accuracy is within a point of the final one; None if never measured."""
    series = run.series("target_accuracy")
    final = run.target_accuracy
    if final is None:
        return None
    reached = (t for t, value in zip(*series, strict=True) if value >= final - CLOSE - 1e-12)
    first = next(reached, None)
    return None if first is None else first / 100


def method_columns(item: Item, runs: Sequence[RunResult]) -> list[TableColumn]:
    """Return the methods' columns as in the paper: grouped by method, then by objective."""
    objective_of = {curve: objective for objective, curves in item.columns_of.items() for curve in curves}
    objective_of |= {run.curve: run.objective for run in runs if run.role == "method" and run.curve not in objective_of}
    methods: dict[str, dict[str, str]] = {}
    for curve in in_order(objective_of, item.curves or objective_of):
        objective = objective_of[curve]
        methods.setdefault(curve.removeprefix(f"{objective}_"), {})[objective] = curve
    order = dict.fromkeys([*item.columns_of, *objective_of.values()])
    return [
        TableColumn(_method_name(method, runs, set(curves.values())), objective.upper(), curves[objective])
        for method, curves in methods.items()
        for objective in order
        if objective in curves
    ]


def bound_columns(item: Item, runs: Sequence[RunResult]) -> list[TableColumn]:
    """Return a column for each curve that is not a method's, computed or not."""
    methods = {column.curve for column in method_columns(item, runs)}
    labels = {run.curve: run.label for run in runs}
    curves = in_order([*item.curves, *labels], item.curves)
    return [
        TableColumn("", labels.get(curve, curve.replace("_", " ")), curve) for curve in curves if curve not in methods
    ]


def markdown(grid: TableGrid) -> str:
    """Return the grid as a Markdown table, with its notes below."""
    heads = [f"{column.group}<br>{column.heading}" if column.group else column.heading for column in grid.columns]
    lines = [["", *heads], [":--", *["--:"] * len(heads)]]
    for row in grid.rows:
        lines.append([row.title, *(_cell(grid, number) for number in row.numbers)])
    return markdown_lines(lines) + "\n" + "\n\n".join(f"{note}." for note in grid.notes) + "\n"


def _cell(grid: TableGrid, number: Number) -> str:
    ours = f"**{grid.ours(number)}**" if number.best else grid.ours(number)
    share = f"[{number.share}]" if number.share else ""
    return " ".join(part for part in (ours, share, grid.paper(number)) if part)


def _grid(
    item: Item,
    runs: Sequence[RunResult],
    columns: list[TableColumn],
    measure: Callable[[RunResult], float | None],
    paper: Mapping[Cell, float],
    style: Style,
    notes: list[str],
) -> TableGrid:
    cells = by_cell(runs)
    numbers = {
        (panel, column.curve): _number(cells.get((panel, column.curve), []), measure, paper.get((panel, column.curve)))
        for panel in item.panels
        for column in columns
    }
    rows = [
        TableRow(item.panel_title(panel), [numbers[panel, column.curve] for column in columns]) for panel in item.panels
    ]
    if len(rows) > 1:
        rows.append(TableRow("Average", [_average([row.numbers[i] for row in rows]) for i in range(len(columns))]))
    return TableGrid(columns, rows, style, [*notes, *_remarks(item, columns, rows, cells)])


def _number(runs: Sequence[RunResult], measure: Callable[[RunResult], float | None], paper: float | None) -> Number:
    values = [value for run in runs if (value := measure(run)) is not None]
    return Number(
        value=fmean(values) if values else None,
        spread=stdev(values) if len(values) > 1 else None,
        paper=paper,
        diverged=any(run.diverged for run in runs),
    )


def _average(numbers: Sequence[Number]) -> Number:
    """Average the rows that have our number, and the paper's over the same rows, or over all if we have none."""
    known = [number for number in numbers if number.value is not None]
    paper = [number.paper for number in known or numbers]
    complete = [value for value in paper if value is not None]
    return Number(
        value=fmean(number.value for number in known if number.value is not None) if known else None,
        paper=fmean(complete) if complete and len(complete) == len(paper) else None,
        diverged=any(number.diverged for number in known),
        share=f"{len(known)} of {len(numbers)}" if 0 < len(known) < len(numbers) else "",
    )


def _with_best(grid: TableGrid) -> list[TableRow]:
    """Mark the highest of our numbers in each row for each objective that has several."""
    rows = []
    for title, numbers in grid.rows:
        marked = list(numbers)
        for heading in {column.heading for column in grid.columns}:
            rivals = [
                i
                for i, column in enumerate(grid.columns)
                if column.heading == heading and numbers[i].value is not None and not numbers[i].share
            ]
            written = {i: round(numbers[i].value or 0.0, 1) for i in rivals}
            for i in rivals:
                best = len(rivals) > 1 and written[i] == max(written.values())
                marked[i] = replace(numbers[i], best=best)
        rows.append(TableRow(title, marked))
    return rows


def _remarks(
    item: Item, columns: Sequence[TableColumn], rows: Sequence[TableRow], cells: Mapping[Cell, list[RunResult]]
) -> list[str]:
    """Explain the marks that occur in a grid."""
    numbers = [number for row in rows for number in row.numbers]
    found = []
    if any(number.value is None and not number.diverged for number in numbers):
        found.append(f"{ABSENT} not computed")
    if any(number.share for number in numbers):
        found.append("[n of m] an average over the n rows with a number of ours; the paper's is over the same rows")
    diverged = []
    for panel in item.panels:
        for column in columns:
            runs = cells.get((panel, column.curve), [])
            count = sum(run.diverged for run in runs)
            if count:
                name = " ".join(part for part in (column.group, column.heading) if part)
                diverged.append(f"{item.panel_title(panel)} {name} ({count} of {len(runs)})")
    if diverged:
        found.append(f"{DAGGER} runs that diverged, which count with their last good round: {', '.join(diverged)}")
    return found


def _method_name(method: str, runs: Sequence[RunResult], curves: set[str]) -> str:
    labels = {run.label for run in runs if run.curve in curves}
    return labels.pop() if len(labels) == 1 else _METHODS.get(method, method.replace("_", " "))


def _several(runs: Sequence[RunResult]) -> bool:
    return any(len(group) > 1 for group in by_cell(runs).values())


def _percent(run: RunResult) -> float | None:
    return None if run.target_accuracy is None else 100 * run.target_accuracy


# All runs -------------------------------------------------------------------------------------------------------------


def results_table(results: Path | str) -> str:
    """Return the runs of a results file in order of its lines, with a table per scale if there are several."""
    runs = read_results(results)
    scales = list(dict.fromkeys(run.scale for run in runs))
    tables = [runs_table([run for run in runs if run.scale == scale]) for scale in scales]
    if len(scales) < 2:
        return tables[0] if tables else runs_table([])
    return "\n".join(f"Scale: {scale}\n\n{table}" for scale, table in zip(scales, tables, strict=True))


def runs_table(
    runs: Sequence[RunResult],
    panels: Sequence[str] | None = None,
    curves: Sequence[str] | None = None,
    titles: Mapping[str, str] | None = None,
) -> str:
    """Return the runs as a Markdown table, in the order of the given panels and curves."""
    cells = by_cell(runs)
    panels = in_order((run.panel for run in runs), panels or [run.panel for run in runs])
    curves = in_order((run.curve for run in runs), curves or [run.curve for run in runs])
    lines = [
        ["panel", "curve", "seeds", "target (%)", "min to max", "rounds", "status"],
        [":--", ":--", *["--:"] * 4, ":--"],
    ]
    lines += [
        [(titles or {}).get(panel, panel), *_summary(cells[panel, curve])]
        for panel in panels
        for curve in curves
        if (panel, curve) in cells
    ]
    return markdown_lines(lines)


def _summary(runs: Sequence[RunResult]) -> list[str]:
    known = [100 * run.target_accuracy for run in runs if run.target_accuracy is not None]
    rounds = sorted({run.rounds for run in runs})
    diverged = sum(run.diverged for run in runs)
    return [
        runs[0].label + (" (bound)" if runs[0].role == "bound" else ""),
        str(len(runs)),
        f"{fmean(known):.1f}" if known else ABSENT,
        f"{min(known):.1f} to {max(known):.1f}" if len(known) > 1 else ABSENT,
        " to ".join(f"{t:,}" for t in dict.fromkeys([rounds[0], rounds[-1]])),
        f"{diverged} of {len(runs)} diverged" if diverged else "completed",
    ]
