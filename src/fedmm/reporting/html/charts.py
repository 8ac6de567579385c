"""Charts as plotly's figures in plain tables, and the colours of a report, light and dark.

Figures name colours by words such as ``$line0``, which the page replaces.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from matplotlib.colors import to_hex, to_rgb

from fedmm.reporting.curves import Curve
from fedmm.reporting.html.collect import Report
from fedmm.reporting.style import DASHES, Stroke, family_colours, strokes

_BACKGROUND = {"light": "#FFFFFF", "dark": "#1B1E23"}
_CONTRAST = {"light": 2.4, "dark": 4.0}
"""Of a line with what is behind it, at least."""
_CLASSES = (
    "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#8C8C8C", "#EE8866", "#44AA99", "#882255",
)  # fmt: skip
_FILL = 0.16
_MOST_SHADES = 3
_BASE = {
    "light": {
        "ink": "#22262B", "faint": "#646B73", "rule": "#E3E5E8", "back": "#FFFFFF", "source": "#0072B2",
        "target": "#D55E00", "low": "#FFFFFF", "high": "#0B4F8A", "good": "#00724F", "bad": "#B3401A",
    },
    "dark": {
        "ink": "#E6E8EB", "faint": "#9BA3AC", "rule": "#343A42", "back": "#1B1E23", "source": "#56B4E9",
        "target": "#F08A4B", "low": "#1B1E23", "high": "#8CC8F5", "good": "#4CC79B", "bad": "#F0936B",
    },
}  # fmt: skip
CLASS_COLOURS = len(_CLASSES)
Theme = dict[str, str]


def method_strokes(report: Report) -> list[Stroke]:
    """How the lines of each method are drawn, in the methods' order; the same as in pictures of a comparison.

    Many settings of one algorithm, as in a sweep, go from dark to light instead.
    """
    methods = report.methods
    if len(methods) > _MOST_SHADES and len({(m.first.run.algorithm, m.first.run.objective) for m in methods}) == 1:
        return [Stroke(colour, DASHES[0], 1.9, 3) for colour in family_colours(len(methods))]
    return list(strokes({method.label: method.runs for method in methods}).values())


def themes(lines: Sequence[Stroke]) -> dict[str, Theme]:
    """For ``light`` and ``dark``: colours by their words."""
    return {name: {**base, **_of_lines(name, lines)} for name, base in _BASE.items()}


def _of_lines(theme: str, lines: Sequence[Stroke]) -> Theme:
    found: Theme = {}
    for number, stroke in enumerate(lines):
        colour = readable(stroke.colour, theme)
        found[f"line{number}"] = colour
        found[f"fill{number}"] = _transparent(colour)
    found |= {f"class{number}": readable(colour, theme) for number, colour in enumerate(_CLASSES)}
    return found


def readable(colour: str, theme: str) -> str:
    """The colour, as much nearer to white on dark or to black on light as it takes to be seen."""
    towards = 1.0 if theme == "dark" else 0.0
    parts = to_rgb(colour)
    for step in range(20):
        mixed = tuple(part + 0.05 * step * (towards - part) for part in parts)
        if _contrast(mixed, to_rgb(_BACKGROUND[theme])) >= _CONTRAST[theme]:
            break
    return str(to_hex(mixed)).upper()  # type: ignore[arg-type]


def _contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """The contrast ratio of WCAG 2."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Sequence[float]) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _transparent(colour: str) -> str:
    red, green, blue = (round(255 * part) for part in to_rgb(colour))
    return f"rgba({red},{green},{blue},{_FILL})"


def style_sheet(found: Mapping[str, Theme]) -> str:
    """The themes as CSS variables: light, dark where the reader's machine is, and whichever was chosen."""

    def variables(theme: str) -> str:
        return "".join(f"--{name}:{value};" for name, value in found[theme].items())

    return (
        f":root{{color-scheme:light;{variables('light')}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{variables('dark')}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{variables('dark')}}}"
    )


Figure = dict[str, Any]
_MOST_POINTS, _MANY, _MOST_POINTS_OF_MANY = 400, 12, 120
_DIGITS = 5
_WIDE_RANGE = 50.0
"""A ratio of largest to smallest above which an axis is logarithmic at first."""
_SPAN = 1000.0
"""A ratio of largest to smallest above which numbers of a column have decimals of their own."""
_DASH_NAMES = dict(zip(DASHES, ("solid", "dash", "dot", "dashdot"), strict=True))


@dataclass(frozen=True)
class Chart:
    """A chart that is drawn when it is first seen.

    figures: by the values of its section's controls, joined by ``|``; under ``""`` if there are none.
    alt: what it shows, in words. last: for each method the value its line ends with.
    widest: pixels that it takes at most, 0 for all there are.
    """

    kind: ClassVar[str] = "chart"
    name: str
    title: str
    alt: str
    figures: Mapping[str, Figure]
    height: int = 300
    widest: int = 0
    scales: bool = False
    last: Sequence[tuple[str, str]] = field(default=())


class Lines:
    """Draws lines of methods in the look that each has everywhere."""

    def __init__(self, labels: Sequence[str], strokes: Sequence[Stroke]) -> None:
        self.labels = labels
        self._strokes = strokes
        self.most = _MOST_POINTS if len(labels) <= _MANY else _MOST_POINTS_OF_MANY

    def chart(
        self,
        name: str,
        title: str,
        curves: Mapping[int, Curve],
        *,
        unit: str = "",
        x_title: str = "round",
        x: Mapping[int, Sequence[float]] | None = None,
        height: int = 300,
        log: bool = False,
        from_zero: bool = True,
    ) -> Chart:
        """One line a method with the range of its seeds behind it.

        curves: by the number of the method. x: other places of the points than their rounds, by the same numbers.
        log: a logarithmic axis at first, where values span magnitudes. from_zero: else the axis shows where values lie,
        as for scores, which differ little.
        """
        data: list[Figure] = []
        for number, curve in curves.items():
            data += self._traces(number, curve, list(x[number]) if x else curve.rounds, unit, x_title)
        positive = [value for curve in curves.values() for value in curve.mean if value > 0]
        lowest = min((value for curve in curves.values() for value in curve.low), default=0.0)
        scales = from_zero and bool(positive) and not unit and lowest > 0
        wide = log and scales and max(positive) > _WIDE_RANGE * min(positive)
        y_axis: Figure = {"ticksuffix": unit if unit == "%" else "", "type": "log" if wide else "linear"}
        if not from_zero:
            y_axis["tickformat"] = ".3f"
        if from_zero and not wide and not unit and positive and lowest >= 0:
            y_axis["rangemode"] = "tozero"
        layout = {
            "xaxis": {"title": {"text": x_title}, "rangemode": "tozero"},
            "yaxis": y_axis,
            "hovermode": "x unified" if len(curves) <= 8 and x is None else "closest",
        }
        ends = align([curve.mean[-1] for curve in curves.values()])
        last = [(self.labels[number], f"{end}{unit}") for number, end in zip(curves, ends, strict=True)]
        said = "; ".join(f"{label} ends at {value}" for label, value in last[:8])
        return Chart(
            name,
            title,
            f"Line chart of {title} by {x_title}: {said}.",
            {"": {"data": data, "layout": layout}},
            height,
            scales=scales,
            last=last,
        )

    def line(self, number: int) -> Figure:
        """The look of a method's lines."""
        stroke = self._strokes[number]
        return {"color": f"$line{number}", "dash": _DASH_NAMES.get(stroke.dash, "solid"), "width": stroke.width * 0.85}

    def _traces(self, number: int, curve: Curve, x: list[Any], unit: str, x_title: str) -> list[Figure]:
        at = thin(len(x), self.most)
        places = round_off([x[i] for i in at])
        common = {"meta": number, "type": "scatter", "mode": "lines", "name": plain(self.labels[number])}
        traces: list[Figure] = []
        if len(curve.runs) > 1:
            high, low = ([values[i] for i in at] for values in (curve.high, curve.low))
            traces.append(
                {
                    **common,
                    "x": places + places[::-1],
                    "y": round_off(high + low[::-1]),
                    "fill": "toself",
                    "fillcolor": f"$fill{number}",
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                }
            )
        line = self.line(number)
        for tail in curve.tails if not isinstance(x[0], float) else ():
            end = thin(len(tail.rounds), self.most)
            points = {"x": [tail.rounds[i] for i in end], "y": round_off([tail.values[i] for i in end])}
            traces.append({**common, **points, "line": {**line, "width": 1}, "opacity": 0.6, "hoverinfo": "skip"})
        where = "%{x:.3~f}" if isinstance(x[0], float) else "%{x}"
        traces.append(
            {
                **common,
                "x": places,
                "y": round_off([curve.mean[i] for i in at]),
                "mode": "lines+markers" if len(places) == 1 else "lines",
                "line": line,
                "marker": {"color": f"$line{number}"},
                "hovertemplate": f"%{{y:.4~g}}{unit} at {where} {plain(x_title)}",
            }
        )
        return traces


def plain(words: str) -> str:
    """Text that plotly shows as it is: it would take some tags for its own."""
    return html.escape(words, quote=False)


def round_off(values: Sequence[Any]) -> list[Any]:
    """Numbers with as many digits as a screen shows; None for those that are not finite."""
    return [
        value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
        for value in values
    ]


def short(value: float) -> str:
    """A number for a table: three or four digits that count."""
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e5):
        return f"{value:.2e}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def align(values: Sequence[float]) -> list[str]:
    """Numbers of one column with as many decimals as its largest needs for three digits, if all are of its size."""
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    if not sizes or not 1e-3 <= max(sizes) < 1e5 or max(sizes) > _SPAN * min(sizes):
        return [short(value) for value in values]
    digits = max(2 - math.floor(math.log10(max(sizes))), 0)
    return [f"{value:.{digits}f}" for value in values]


def thin(length: int, most: int) -> list[int]:
    """Places 0 .. length - 1, or so many of them evenly spread, with the first and the last."""
    if length <= most:
        return list(range(length))
    return sorted({round(place * (length - 1) / (most - 1)) for place in range(most)})
