"""Charts as plotly's figures in plain tables. Colours are words that the page replaces: see ``colours``."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedmm.reporting.html.bands import Band, thinned
from fedmm.reporting.style import Stroke

Figure = dict[str, Any]
_MOST_POINTS, _MANY, _MOST_POINTS_OF_MANY = 400, 12, 120
_DIGITS = 5
_WIDE_RANGE = 50.0
"""A ratio of largest to smallest above which an axis is logarithmic at first."""
_DASHES = {0: "solid", 1: "dash", 2: "dot", 3: "dashdot"}


@dataclass(frozen=True)
class Chart:
    """A chart that is drawn when it is first seen.

    figures: by the values of its section's controls, joined by ``|``; under ``""`` where there are none.
    alt: what it shows, in words. last: for each method the value its line ends with.
    widest: pixels that it takes at most, 0 for all there are.
    """

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
        self._dashes = _dash_names(strokes)
        self._strokes = strokes
        self.most = _MOST_POINTS if len(labels) <= _MANY else _MOST_POINTS_OF_MANY

    def chart(
        self,
        name: str,
        title: str,
        bands: Mapping[int, Band],
        *,
        unit: str = "",
        x_title: str = "round",
        x: Mapping[int, Sequence[float]] | None = None,
        height: int = 300,
        log: bool = False,
    ) -> Chart:
        """One line a method with the range of its seeds behind it.

        bands: by the number of the method. x: other places of the points than their rounds, by the same numbers.
        log: a logarithmic axis at first, where values span magnitudes.
        """
        data: list[Figure] = []
        for number, each in bands.items():
            data += self._traces(number, each, list(x[number]) if x else each.rounds, unit, x_title)
        positive = [value for each in bands.values() for value in each.mean if value > 0]
        scales = bool(positive) and not unit and min(v for each in bands.values() for v in each.low) > 0
        wide = log and scales and max(positive) > _WIDE_RANGE * min(positive)
        y_axis: Figure = {"ticksuffix": unit if unit == "%" else "", "type": "log" if wide else "linear"}
        if not wide and not unit and positive and min(min(each.low) for each in bands.values()) >= 0:
            y_axis["rangemode"] = "tozero"
        layout = {
            "xaxis": {"title": {"text": x_title}, "rangemode": "tozero"},
            "yaxis": y_axis,
            "hovermode": "x unified" if len(bands) <= 8 and x is None else "closest",
        }
        last = [(self.labels[number], f"{short(each.last)}{unit}") for number, each in bands.items()]
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

    def _traces(self, number: int, each: Band, x: list[Any], unit: str, x_title: str) -> list[Figure]:
        at = thinned(len(x), self.most)
        places = rounded([x[i] for i in at])
        common = {"meta": number, "type": "scatter", "mode": "lines", "name": plain(self.labels[number])}
        traces: list[Figure] = []
        if each.runs > 1:
            high, low = ([values[i] for i in at] for values in (each.high, each.low))
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
        line = {"color": f"$line{number}", "dash": self._dashes[number], "width": self._strokes[number].width * 0.85}
        for tail in each.tails if not isinstance(x[0], float) else ():
            end = thinned(len(tail.rounds), self.most)
            points = {"x": [tail.rounds[i] for i in end], "y": rounded([tail.values[i] for i in end])}
            traces.append({**common, **points, "line": {**line, "width": 1}, "opacity": 0.6, "hoverinfo": "skip"})
        where = "%{x:.3~f}" if isinstance(x[0], float) else "%{x}"
        traces.append(
            {
                **common,
                "x": places,
                "y": rounded([each.mean[i] for i in at]),
                "mode": "lines+markers" if len(places) == 1 else "lines",
                "line": line,
                "marker": {"color": f"$line{number}"},
                "hovertemplate": f"%{{y:.4~g}}{unit} at {where} {plain(x_title)}",
            }
        )
        return traces


def _dash_names(strokes: Sequence[Stroke]) -> list[str]:
    """Plotly's names for the strokes' dashes."""
    kinds: list[Any] = ["-", (0, (5, 1.6)), (0, (1.4, 1.2)), (0, (5, 1.4, 1.2, 1.4))]
    return [_DASHES[kinds.index(stroke.dash)] if stroke.dash in kinds else "solid" for stroke in strokes]


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
