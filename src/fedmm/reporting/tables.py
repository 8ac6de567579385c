"""A comparison as a table: one row a label, for Markdown and for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fedmm.core.signals.validators import VALIDATORS
from fedmm.reporting.read import Comparison, Run, last_values

_ABSENT = "-"
_BORDER, _PADDING, _WIDEST_NAME = 1, 3, 30
"""Columns of a terminal that lines of a table take: at its left, and beside each cell; and of a word in a name."""
VALIDATOR_COLUMNS = tuple(validator.column for validator in VALIDATORS.values() if not validator.oracle)
"""Columns of the history by which a model may be chosen without target labels."""


class FittedRow(NamedTuple):
    """A row of :func:`fit_table`: its name, which may wrap, and a cell for each of the other columns."""

    name: str
    cells: Sequence[str]
    bold: bool = False


@dataclass(frozen=True)
class SummaryRow:
    """What the runs of one label reached. Accuracies are fractions in [0, 1], over the seeds that measured one.

    low, high, std: the spread over seeds (std with n - 1), None below two of them.
    seconds, megabytes: of one run, mean over the seeds; megabytes (10^6 bytes) count both directions.
    stopped: runs that did not complete, by status. validators: what needs no target labels, after the last round: the
    seeds' values by the history's column.
    """

    label: str
    seeds: tuple[int, ...]
    accuracy: float | None
    low: float | None
    high: float | None
    std: float | None
    seconds: float
    megabytes: float
    stopped: Mapping[str, int]
    validators: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """What must be said of the numbers, for example ``1 of 3 runs diverged``; empty when all completed."""
        return ", ".join(f"{count} of {len(self.seeds)} runs {status}" for status, count in self.stopped.items())


def comparison_rows(comparison: Comparison) -> list[SummaryRow]:
    """A row for each label, in the order in which the labels first appear."""
    return [_row(label, runs) for label, runs in comparison.groups().items()]


def _row(label: str, runs: Sequence[Run]) -> SummaryRow:
    accuracies = [run.target_accuracy for run in runs if run.target_accuracy is not None]
    several = len(accuracies) > 1
    return SummaryRow(
        label=label,
        seeds=tuple(run.seed for run in runs),
        accuracy=fmean(accuracies) if accuracies else None,
        low=min(accuracies) if several else None,
        high=max(accuracies) if several else None,
        std=stdev(accuracies) if several else None,
        seconds=fmean(run.seconds for run in runs),
        megabytes=fmean(run.megabytes for run in runs),
        stopped=dict(Counter(run.status for run in runs if run.status != "completed")),
        validators={column: values for column in VALIDATOR_COLUMNS if (values := last_values(runs, column))},
    )


def markdown_table(rows: Sequence[SummaryRow]) -> str:
    """The rows as a Markdown table; the columns of the spread appear where some label has several seeds."""
    headings, *lines = _cells(rows)
    return markdown_lines([headings, [":--", *["--:"] * (len(headings) - 1)], *lines])


def rich_table(rows: Sequence[SummaryRow], title: str | None = None) -> Table:
    """The rows as a table for the terminal."""
    headings, *lines = _cells(rows)
    table = Table(title=None if title is None else Text(title, style="bold"), title_justify="left")
    for position, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if position else "left", no_wrap=position > 0)
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    return table


def validator_table(rows: Sequence[SummaryRow]) -> Table:
    """What was measured without target labels, a line a validator and a column a method: mean, and range over seeds."""
    title = Text("without target labels, after the last round: mean (lowest to highest seed)", style="bold")
    table = Table(title=title, title_justify="left")
    table.add_column("validator")
    for row in rows:
        table.add_column(Text(row.label), justify="right")
    for validator in VALIDATORS.values():
        if validator.column in VALIDATOR_COLUMNS and any(validator.column in row.validators for row in rows):
            cells = [Text(seeds_in_words(row.validators.get(validator.column, ()))) for row in rows]
            table.add_row(f"{validator.name} ({'higher' if validator.higher else 'lower'} is better)", *cells)
    return table


def fit_table(name: str, headings: Sequence[str], rows: Sequence[FittedRow], width: int) -> Table:
    """A table no wider than ``width``: the first column wraps between words, and the last ones go if they do not fit.

    name: the heading of the first column; headings: of the others. Both, and cells, may have several lines.
    """
    words = [word for row in rows for word in row.name.split()] + name.split()
    least = min(max(map(len, words)), _WIDEST_NAME)
    room = width - _BORDER - (least + _PADDING)
    shown = 0
    for number, heading in enumerate(headings):
        room -= max(map(cell_len, "\n".join([heading, *(row.cells[number] for row in rows)]).split("\n"))) + _PADDING
        shown += room >= 0
    left_out = [heading.replace("\n", " ") for heading in headings[max(shown, 1) :]]
    table = Table(caption=f"a wider terminal also shows {', '.join(left_out)}" if left_out else None)
    table.caption_justify = "left"
    table.add_column(name, overflow="fold")
    for heading in headings[: max(shown, 1)]:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            *(Text(cell, style="bold" if row.bold else "") for cell in (row.name, *row.cells[: max(shown, 1)]))
        )
    return table


def seeds_in_words(values: Sequence[float]) -> str:
    """The mean of some seeds' values, with the lowest and the highest of several; a dash for none."""
    if not values:
        return _ABSENT
    span = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{span}"


def _cells(rows: Sequence[SummaryRow]) -> list[list[str]]:
    """Headings, then the cells of each row."""
    spread = any(row.std is not None for row in rows)
    headings = ["method", "target (%)", *(["min to max", "std"] if spread else []), "seeds", "seconds", "MB"]
    return [headings, *(_line(row, spread) for row in rows)]


def _line(row: SummaryRow, spread: bool) -> list[str]:
    label = f"{row.label} ({row.note})" if row.note else row.label
    between = _ABSENT if row.low is None else f"{percent(row.low)} to {percent(row.high)}"
    over_seeds = [between, percent(row.std)] if spread else []
    numbers = [str(len(row.seeds)), _short(row.seconds), _short(row.megabytes)]
    return [label, percent(row.accuracy), *over_seeds, *numbers]


def percent(fraction: float | None) -> str:
    """A fraction in percent with one decimal, or a dash for None."""
    return _ABSENT if fraction is None else f"{100 * fraction:.1f}"


def _short(value: float) -> str:
    """At least three digits that count, never an exponent."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def markdown_lines(lines: Iterable[Sequence[str]]) -> str:
    """The lines of a Markdown table from their cells, whose text stays in its cell."""
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in line] for line in lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in cells)
