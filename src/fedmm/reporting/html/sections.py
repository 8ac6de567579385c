"""What a section of a report is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedmm.reporting.html.bands import Band, column_band
from fedmm.reporting.html.charts import Chart, Lines
from fedmm.reporting.html.collect import Material
from fedmm.reporting.html.markup import Markup, element, table


@dataclass(frozen=True)
class Grid:
    """Charts side by side where there is room."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Controls:
    """Choices by which the charts of a section change, in the order in which they make up a figure's key.

    choices: for each, its name and the options as (value, words).
    """

    choices: Sequence[tuple[str, Sequence[tuple[str, str]]]]


Part = Markup | Chart | Grid | Controls


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
            elif isinstance(part, Grid):
                yield from part.charts

    def html(self) -> Markup:
        """The section; its charts are boxes that are filled when they are seen."""
        heading = element("h2", element("a", self.title, href=f"#{self.name}"))
        return element("section", heading, *map(self._part, self.parts), id=self.name, data_section=self.name)

    def _part(self, part: Part) -> Markup:
        if isinstance(part, Chart):
            return _box(part)
        if isinstance(part, Grid):
            return element("div", *map(_box, part.charts), class_="grid")
        if isinstance(part, Controls):
            return _controls(part, self.name)
        return part


def sentence(words: str) -> Markup:
    """A line of explanation."""
    return element("p", words, class_="about")


def absent(words: str) -> Markup:
    """The one sentence that stands where there is nothing to show."""
    return element("p", words, class_="absent")


def _box(chart: Chart) -> Markup:
    scale = element("button", "log scale", type="button", class_="scale", data_scale=chart.name, aria_pressed="false")
    numbers: Sequence[Markup] = ()
    if chart.last:
        last = table(["method", "last"], chart.last, f"{chart.title}: last values")
        numbers = (element("details", element("summary", "last values"), last, class_="numbers"),)
    return element(
        "figure",
        element("figcaption", element("h3", chart.title), scale if chart.scales else ""),
        element(
            "div",
            class_="plot",
            data_chart=chart.name,
            role="img",
            aria_label=chart.alt,
            style=f"height:{chart.height}px" + (f";max-width:{chart.widest}px" if chart.widest else ""),
        ),
        *numbers,
        class_="chart",
    )


def _controls(controls: Controls, section: str) -> Markup:
    shown = []
    for name, options in controls.choices:
        if len(options) < 2:
            shown.append(element("input", type="hidden", value=options[0][0], data_control=section))
            continue
        chosen = element(
            "select", *(element("option", words, value=value) for value, words in options), data_control=section
        )
        shown.append(element("label", element("span", name), chosen))
    return element("div", *shown, class_="controls")


def method_options(numbers: Iterable[int], material: Material) -> list[tuple[str, str]]:
    """A choice among some methods, by their numbers; a FedMM comes first where there is one."""
    methods = material.methods
    ordered = sorted(numbers, key=lambda number: not methods[number].first.run.algorithm.startswith("fedmm"))
    return [(str(number), methods[number].label) for number in ordered]


def bands_of(material: Material, column: str, times: float = 1.0) -> dict[int, Band]:
    """By the number of the method, the bands of those that have a column."""
    found = {number: column_band(method.runs, column, times) for number, method in enumerate(material.methods)}
    return {number: each for number, each in found.items() if each is not None}


def column_charts(
    material: Material, lines: Lines, columns: Mapping[str, tuple[str, str]], *, log: bool = False
) -> list[Chart]:
    """A chart for each column that was measured; columns: by name, a title and a unit (``%`` for fractions)."""
    found = []
    for column, (title, unit) in columns.items():
        bands = bands_of(material, column, 100.0 if unit == "%" else 1.0)
        if bands:
            found.append(lines.chart(column.replace("_", "-"), title, bands, unit=unit, log=log))
    return found
