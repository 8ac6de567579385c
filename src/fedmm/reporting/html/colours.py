"""Colours of a report, light and dark; figures name them by words such as ``$line0``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.colors import to_hex, to_rgb

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
