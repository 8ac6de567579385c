"""What a section of a report is made of: the page's template draws each kind of part, and escapes every text.

A cell of a table may be :class:`markupsafe.Markup`; its ``format`` escapes what is put into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from markupsafe import Markup

from fedmm.reporting.curves import Curve, column_curve, mean_curve
from fedmm.reporting.html.charts import Chart, Lines
from fedmm.reporting.html.collect import Report

_LONG = 30
"""Letters of a label from which on it is broken into lines."""


@dataclass(frozen=True)
class Text:
    """A paragraph; class_: ``about`` explains, ``absent`` stands if there is nothing to show."""

    kind: ClassVar[str] = "text"
    words: str
    class_: str = "about"


@dataclass(frozen=True)
class HtmlTable:
    """A table in a box of its own that may be scrolled; the first cell of a row heads it.

    numbers: from which column on cells are numbers, set to the right.
    """

    kind: ClassVar[str] = "table"
    headings: Sequence[object]
    rows: Sequence[Sequence[object]]
    caption: str
    numbers: int = 1
    class_: str = ""


@dataclass(frozen=True)
class Details:
    """A table that is unfolded by its summary."""

    kind: ClassVar[str] = "details"
    summary: str
    table: HtmlTable


@dataclass(frozen=True)
class Listing:
    """Lines below each other."""

    kind: ClassVar[str] = "list"
    entries: Sequence[str]
    class_: str


@dataclass(frozen=True)
class ChartGrid:
    """Charts side by side where there is room."""

    kind: ClassVar[str] = "grid"
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Controls:
    """Choices by which the charts of a section change, in the order in which they make up a figure's key.

    choices: for each, its name and the options as (value, words).
    """

    kind: ClassVar[str] = "controls"
    choices: Sequence[tuple[str, Sequence[tuple[str, str]]]]


@dataclass(frozen=True)
class Slider:
    """A slider over accuracies in percent, and the table of costs that it fills."""

    kind: ClassVar[str] = "slider"
    level: int
    table: HtmlTable


class Card(NamedTuple):
    """An image, and what each method says of it: the method's number and label, and its words."""

    source: str
    alt: str
    heading: str
    said: Sequence[tuple[int, str, Markup]]


@dataclass(frozen=True)
class Gallery:
    """Cards side by side; smooth: whether single pixels would hide what the images show."""

    kind: ClassVar[str] = "gallery"
    cards: Sequence[Card]
    smooth: bool


Part = Text | HtmlTable | Details | Listing | Chart | ChartGrid | Controls | Slider | Gallery


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    name: str
    title: str
    parts: Sequence[Part]

    def charts(self) -> Iterator[Chart]:
        """All charts, wherever they stand."""
        for part in self.parts:
            if isinstance(part, Chart):
                yield part
            elif isinstance(part, ChartGrid):
                yield from part.charts


def absent(words: str) -> Text:
    """The one sentence that stands if there is nothing to show."""
    return Text(words, "absent")


def two_lines(upper: object, lower: object) -> Markup:
    """A cell with a line of explanation."""
    return Markup("{}<small>{}</small>").format(upper, lower)


def swatch(number: int) -> Markup:
    """A dot in the colour of a method."""
    dot = Markup('<span class="swatch" style="background:var(--line{})" aria-hidden="true"></span>')
    return dot.format(number)


def name_method(number: int, label: str) -> Markup:
    """A method's label behind its dot; only a long one is broken into lines."""
    class_ = "name long" if len(label) > _LONG else "name"
    return Markup('<span class="{}">{}{}</span>').format(class_, swatch(number), label)


def method_options(numbers: Iterable[int], report: Report) -> list[tuple[str, str]]:
    """A choice among some methods, by their numbers; a FedMM comes first where there is one."""
    methods = report.methods
    ordered = sorted(numbers, key=lambda number: not methods[number].first.run.algorithm.startswith("fedmm"))
    return [(str(number), methods[number].label) for number in ordered]


def method_curves(report: Report, column: str, times: float = 1.0) -> dict[int, Curve]:
    """By the number of the method, the curves of those that have a column."""
    curves = {number: column_curve(method.runs, column, times) for number, method in enumerate(report.methods)}
    return {number: shared_or_longest(curve) for number, curve in curves.items() if curve.runs}


def shared_or_longest(curve: Curve) -> Curve:
    """A curve to draw: where its runs share no round, that of the run that measured the most."""
    return curve if curve.rounds else mean_curve([max(curve.runs, key=lambda run: len(run.rounds))])


def column_charts(
    report: Report, lines: Lines, columns: Mapping[str, tuple[str, str]], *, log: bool = False, height: int = 300
) -> list[Chart]:
    """A chart for each column that was measured; columns: by name, a title and a unit (``%`` for fractions)."""
    charts = []
    for column, (title, unit) in columns.items():
        curves = method_curves(report, column, 100.0 if unit == "%" else 1.0)
        if curves:
            name, ranks = column.replace("_", "-"), column.endswith(("auroc", "average_precision"))
            charts.append(lines.chart(name, title, curves, unit=unit, height=height, log=log, from_zero=not ranks))
    return charts
