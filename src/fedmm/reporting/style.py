"""One look for all figures: sizes, and a fixed colour-blind safe colour for each algorithm (Okabe and Ito's set)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedmm.core.errors import require
from fedmm.core.files import atomic_write

WIDTH = 10.0
"""Inches. At DPI this is twice the width at which a README shows it, so that it stays sharp on dense screens."""
DPI = 200
INK, FAINT, RULE = "#222222", "#6B6B6B", "#E4E4E4"
TEXT, SMALL, TITLE = 12.0, 10.5, 15.0
MARGIN, AXIS = 0.18, 0.56
"""Inches: around a figure, and below a panel for the numbers and the name of its axis."""
LINE_HEIGHT, _ASCENT = 1.3, 1.0
"""From one base line to the next, and from the top of a line to its base, in sizes of the font."""

_COLOURS = {
    "source_only": "#8C8C8C",
    "fedmm": "#D55E00",
    "fedavg_gda": "#0072B2",
    "fedprox_gda": "#009E73",
    "scaffold_gda": "#CC79A7",
    "fedsgda": "#56B4E9",
}
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
"""What pictures would say of when and by what they were written, by their endings."""
_SPARE = ("#E69F00", "#332288", "#882255", "#000000")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.4, 1.2)), (0, (5, 1.4, 1.2, 1.4)))
_SHADES = (0.0, -0.5, 0.4)
"""Nearer to black below 0, to white above. With four dashes, twelve labels of one algorithm stay apart."""


class Drawn(Protocol):
    """What decides a colour."""

    @property
    def algorithm(self) -> str: ...

    @property
    def objective(self) -> str: ...


class Stroke(NamedTuple):
    """How the line of one label is drawn."""

    colour: str
    dash: Any
    width: float
    rank: int


def strokes(groups: Mapping[str, Sequence[Drawn]]) -> dict[str, Stroke]:
    """A stroke for each label: the colour says the algorithm; shade and dash tell labels of one algorithm apart."""
    keys = {label: _colour_key(runs[0]) for label, runs in groups.items()}
    unlisted = [key for key in dict.fromkeys(keys.values()) if key not in _COLOURS]
    colours = _COLOURS | {key: _SPARE[i % len(_SPARE)] for i, key in enumerate(unlisted)}
    seen: dict[str, int] = {}
    found = {}
    for label, key in keys.items():
        place = seen[key] = seen.get(key, -1) + 1
        ours = key == "fedmm"
        colour = _shaded(colours[key], _SHADES[place % len(_SHADES)])
        found[label] = Stroke(colour, _DASHES[place % len(_DASHES)], 2.8 if ours else 1.9, 3 + ours)
    return found


def _shaded(colour: str, shade: float) -> str:
    towards = 1.0 if shade > 0 else 0.0
    red, green, blue = (part + abs(shade) * (towards - part) for part in to_rgb(colour))
    return to_hex((red, green, blue)).upper()


def _colour_key(run: Drawn) -> str:
    return "source_only" if run.objective == "source_only" else run.algorithm


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """A white figure (inches) with its own Agg canvas; nothing of pyplot's global state is touched."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches from the figure's top left corner."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def write(figure: Figure, left: float, top: float, words: str, **style: Any) -> None:
    """Text from a place in inches below the figure's top left corner; lines stand on evenly spaced base lines."""
    style = {"fontsize": TEXT, "color": INK, **style}
    for position, line in enumerate(words.splitlines()):
        base = top + (position * LINE_HEIGHT + _ASCENT) * style["fontsize"] / 72
        across, down = figure.get_size_inches()
        figure.text(left / across, 1 - base / down, line, va="baseline", parse_math=False, **style)


def save(figure: Figure, path: Path, dpi: float | None = None) -> Path:
    """Write a PNG, SVG or PDF, as the name ends, that depends on the figure alone."""
    kind = path.suffix.removeprefix(".")
    require(kind in _METADATA, f"{path} must end in .png, .svg or .pdf to be drawn")
    metadata = _METADATA[kind]
    with atomic_write(path) as partial, rc_context({"svg.hashsalt": path.name}):
        figure.savefig(partial, format=kind, dpi=dpi or "figure", facecolor="white", metadata=metadata)
    return path


def quiet(axes: Axes) -> None:
    """No frame but a base line, faint horizontal rules, whole-numbered rounds."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", labelsize=SMALL, labelcolor=FAINT, color=FAINT, length=0, pad=5)
    axes.tick_params(axis="x", length=3.5)
    axes.xaxis.set_major_locator(whole_rounds(8))


def whole_rounds(most: int) -> MaxNLocator:
    """Places for at most so many whole numbers along an axis of rounds."""
    return MaxNLocator(nbins=most, integer=True, min_n_ticks=1, steps=[1, 2, 2.5, 5, 10])


def limit_rounds(axes: Axes, rounds: Sequence[int]) -> None:
    """The axis of the rounds, from the first to the last; a single round stands in the middle."""
    axes.set_xlabel("round", fontsize=SMALL, color=FAINT)
    if rounds:
        low, high = min(rounds), max(rounds)
        axes.set_xlim(low - (low == high), high + (low == high))


def limit_percent(axes: Axes, values: Sequence[float]) -> tuple[float, float]:
    """The axis of percents, which is returned: all values with a little room, hardly beyond 0 to 100."""
    low, high = (min(values), max(values)) if values else (0.0, 100.0)
    room = max(0.06 * (high - low), 1.0)
    limits = max(low - room, -0.5), min(high + room, 100.5)
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter("{x:g}%")
    return limits


def spread_apart(wanted: Sequence[float], heights: Sequence[float], length: float) -> list[float]:
    """Upper edges near the wanted ones at which boxes do not overlap; they stay within 0 to ``length`` where they fit.

    Boxes keep the order of ``wanted``; those that would overlap move as one block, around the mean of their wishes.
    """
    blocks: list[tuple[float, float, list[int]]] = []
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        height, members = heights[i], [i]
        edge = _inside(wanted[i], height, length)
        while blocks and blocks[-1][0] + blocks[-1][1] > edge:
            first, above, others = blocks.pop()
            mean = (first * len(others) + (edge - above) * len(members)) / (len(others) + len(members))
            height, members = above + height, others + members
            edge = _inside(mean, height, length)
        blocks.append((edge, height, members))
    edges = [0.0] * len(wanted)
    for first, _, members in blocks:
        edge = first
        for i in members:
            edges[i] = edge
            edge += heights[i]
    return edges


def _inside(edge: float, height: float, length: float) -> float:
    return max(min(edge, length - height), 0.0)


def wrapped(words: str, columns: int) -> str:
    """Text with every line broken into lines of at most ``columns`` characters."""
    return "\n".join(textwrap.fill(line, columns) for line in words.splitlines())


def fitted(figure: Figure, words: str, inches: float, **style: Any) -> str:
    """Text with every line broken so that it is hardly wider than ``inches`` as :func:`write` would set it."""
    widest = max(text_width(figure, line, **style) / max(len(line), 1) for line in words.splitlines() or [""])
    return wrapped(words, max(int(inches / widest), 1)) if widest else words


def lines_height(words: str, size: float) -> float:
    """The height in inches of text, by its lines."""
    return (words.count("\n") + 1) * LINE_HEIGHT * size / 72


def text_width(figure: Figure, words: str, **style: Any) -> float:
    """The width in inches of text as :func:`write` would set it."""
    text = figure.text(0, 0, words, parse_math=False, **{"fontsize": TEXT, **style})
    width = float(text.get_window_extent().width) / figure.dpi
    text.remove()
    return width
