"""Charts as plotly's figures in plain tables. Colours are words that the page replaces: see ``colours``."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedmm.reporting.curves import Curve
from fedmm.reporting.style import DASHES, Stroke

Figure = dict[str, Any]
_MOST_POINTS, _MANY, _MOST_POINTS_OF_MANY = 400, 12, 120
_DIGITS = 5
_WIDE_RANGE = 50.0
"""A ratio of largest to smallest above which an axis is logarithmic at first."""
_DASH_NAMES = dict(zip(DASHES, ("solid", "dash", "dot", "dashdot"), strict=True))


@dataclass(frozen=True)
class Chart:
    """A chart that is drawn when it is first seen.

    figures: by the values of its section's controls, joined by ``|``; under ``""`` where there are none.
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
    ) -> Chart:
        """One line a method with the range of its seeds behind it.

        curves: by the number of the method. x: other places of the points than their rounds, by the same numbers.
        log: a logarithmic axis at first, where values span magnitudes.
        """
        data: list[Figure] = []
        for number, curve in curves.items():
            data += self._traces(number, curve, list(x[number]) if x else curve.rounds, unit, x_title)
        positive = [value for curve in curves.values() for value in curve.mean if value > 0]
        scales = bool(positive) and not unit and min(v for curve in curves.values() for v in curve.low) > 0
        wide = log and scales and max(positive) > _WIDE_RANGE * min(positive)
        y_axis: Figure = {"ticksuffix": unit if unit == "%" else "", "type": "log" if wide else "linear"}
        if not wide and not unit and positive and min(min(curve.low) for curve in curves.values()) >= 0:
            y_axis["rangemode"] = "tozero"
        layout = {
            "xaxis": {"title": {"text": x_title}, "rangemode": "tozero"},
            "yaxis": y_axis,
            "hovermode": "x unified" if len(curves) <= 8 and x is None else "closest",
        }
        last = [(self.labels[number], f"{short(curve.mean[-1])}{unit}") for number, curve in curves.items()]
        ends = "; ".join(f"{label} ends at {value}" for label, value in last[:8])
        return Chart(
            name,
            title,
            f"Line chart of {title} by {x_title}: {ends}.",
            {"": {"data": data, "layout": layout}},
            height,
            scales=scales,
            last=last,
        )

    def _traces(self, number: int, curve: Curve, x: list[Any], unit: str, x_title: str) -> list[Figure]:
        at = thin(len(x), self.most)
        places = rounded([x[i] for i in at])
        common = {"meta": number, "type": "scatter", "mode": "lines", "name": plain(self.labels[number])}
        traces: list[Figure] = []
        if len(curve.runs) > 1:
            high, low = ([values[i] for i in at] for values in (curve.high, curve.low))
            traces.append(
                {
                    **common,
                    "x": places + places[::-1],
                    "y": rounded(high + low[::-1]),
                    "fill": "toself",
                    "fillcolor": f"$fill{number}",
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                }
            )
        stroke = self._strokes[number]
        line = {"color": f"$line{number}", "dash": _DASH_NAMES.get(stroke.dash, "solid"), "width": stroke.width * 0.85}
        for tail in curve.tails if not isinstance(x[0], float) else ():
            end = thin(len(tail.rounds), self.most)
            points = {"x": [tail.rounds[i] for i in end], "y": rounded([tail.values[i] for i in end])}
            traces.append({**common, **points, "line": {**line, "width": 1}, "opacity": 0.6, "hoverinfo": "skip"})
        where = "%{x:.3~f}" if isinstance(x[0], float) else "%{x}"
        traces.append(
            {
                **common,
                "x": places,
                "y": rounded([curve.mean[i] for i in at]),
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


def rounded(values: Sequence[Any]) -> list[Any]:
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


def thin(length: int, most: int) -> list[int]:
    """Places 0 .. length - 1, or so many of them evenly spread, with the first and the last."""
    if length <= most:
        return list(range(length))
    return sorted({round(place * (length - 1) / (most - 1)) for place in range(most)})
