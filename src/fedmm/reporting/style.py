"""One look for all figures: sizes, and a fixed colour-blind safe colour for each algorithm (Okabe and Ito's set)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from fedmm.core.errors import require
from fedmm.core.files import atomic_write

WIDTH = 10.0
"""Inches. At DPI this is twice the width at which a README shows it, so that it stays sharp on dense screens."""
DPI = 200
INK, FAINT, RULE = "#222222", "#6B6B6B", "#E4E4E4"
TEXT, SMALL, TITLE = 12.0, 10.5, 15.0
MARGIN, AXIS = 0.14, 0.56
"""Inches: around all that is drawn, and below a strip for the numbers and the name of its axis."""
_LINE, _LETTER = 1.3, 0.56
"""From one base line to the next, and the width of a usual letter, in sizes of the font."""
PLAIN: dict[Any, Any] = {"text.parse_math": False}
"""Settings of matplotlib under which names are drawn as they are written, dollars and all."""

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
_WRITER = {"png": "Software", "svg": "Creator", "pdf": "Creator"}
_SPARE = ("#E69F00", "#332288", "#882255", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.4, 1.2)), (0, (5, 1.4, 1.2, 1.4)))
_LIGHTEST = 0.84
"""How far into the colour map a family goes; beyond it yellow fades on white."""
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


class Strip(NamedTuple):
    """A part of a picture over its whole width, about so many inches high, below a heading where it has one."""

    height: float
    draw: Callable[[SubFigure], None]
    heading: str = ""


def strokes(groups: Mapping[str, Sequence[Drawn]]) -> dict[str, Stroke]:
    """A stroke for each label: the colour says the algorithm; shade and dash tell labels of one algorithm apart."""
    keys = {label: _colour_key(runs[0]) for label, runs in groups.items()}
    unlisted = [key for key in dict.fromkeys(keys.values()) if key not in _COLOURS]
    colours = _COLOURS | {key: _SPARE[i % len(_SPARE)] for i, key in enumerate(unlisted)}
    seen: dict[str, int] = {}
    drawn = {}
    for label, key in keys.items():
        position = seen[key] = seen.get(key, -1) + 1
        ours = key == "fedmm"
        colour = _shade(colours[key], _SHADES[position % len(_SHADES)])
        drawn[label] = Stroke(colour, DASHES[position % len(DASHES)], 2.8 if ours else 1.9, 3 + ours)
    return drawn


def family_colours(count: int) -> list[str]:
    """Colours in even steps of lightness from dark to light, for settings of one algorithm in their order."""
    return [str(to_hex(colormaps["viridis"](_LIGHTEST * i / max(count - 1, 1)))).upper() for i in range(count)]


def _shade(colour: str, shade: float) -> str:
    towards = 1.0 if shade > 0 else 0.0
    red, green, blue = (part + abs(shade) * (towards - part) for part in to_rgb(colour))
    return to_hex((red, green, blue)).upper()


def _colour_key(run: Drawn) -> str:
    """Plain averaging of the source's loss is the baseline; by any other algorithm it is a method of its own."""
    baseline = run.objective == "source_only" and run.algorithm == "fedavg_gda"
    return "source_only" if baseline else run.algorithm


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """A white figure (inches) laid out by its content, with its own canvas; pyplot's global state is not touched."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=MARGIN * width / WIDTH, h_pad=0.07)  # type: ignore[union-attr, call-arg]
    FigureCanvasAgg(figure)
    return figure


def whole_part(figure: Figure | SubFigure) -> SubFigure:
    """All that a figure's titles and legends leave of it."""
    part: SubFigure = figure.subfigures(1, 1, squeeze=False)[0, 0]
    return part


def add_titles(figure: Figure, title: str, about: str, *, size: float = TITLE, small: float = TEXT) -> SubFigure:
    """A title and a fainter line of explanation at the top; the returned part of the figure is what they leave."""
    width = float(figure.get_figwidth())
    heading: dict[str, Any] = {"x": MARGIN / WIDTH, "ha": "left"}
    figure.suptitle(wrap_text(title, width, size * 1.1), fontsize=size, weight="bold", color=INK, **heading)
    below = whole_part(figure)
    below.suptitle(wrap_text(about, width, small), fontsize=small, color=FAINT, **heading)
    return whole_part(below)


def titles_height(title: str, about: str, width: float = WIDTH, *, size: float = TITLE, small: float = TEXT) -> float:
    """Inches that :func:`add_titles` takes."""
    title, about = wrap_text(title, width, size * 1.1), wrap_text(about, width, small)
    return lines_height(title, size) + lines_height(about, small) + 0.2


def compose(title: str, about: str, strips: Sequence[Strip], path: Path, writer: str = "") -> Path:
    """Write a picture: a title with a line of explanation, and strips below each other; writer: as in :func:`save`."""
    with rc_context(PLAIN):
        figure = new_figure(titles_height(title, about) + sum(strip.height for strip in strips))
        body = add_titles(figure, title, about)
        parts = body.subfigures(len(strips), 1, squeeze=False, height_ratios=[strip.height for strip in strips])
        for part, strip in zip(parts[:, 0], strips, strict=True):
            if strip.heading:
                part.suptitle(strip.heading, x=MARGIN / WIDTH, ha="left", fontsize=TEXT, weight="bold", color=INK)
            strip.draw(part)
        return save(figure, path, writer=writer)


def save(figure: Figure, path: Path, dpi: float | None = None, writer: str = "") -> Path:
    """Write a PNG, SVG or PDF, as the name ends, that depends on the figure alone.

    writer: what the file says that it was written by.
    """
    kind = path.suffix.removeprefix(".").lower()
    require(kind in _METADATA, f"{path} must end in .png, .svg or .pdf to be drawn")
    metadata = {**_METADATA[kind], **({_WRITER[kind]: writer} if writer else {})}
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


def wrap_text(words: str, inches: float, size: float = TEXT) -> str:
    """Text with every line broken so that it is hardly wider than ``inches`` in a font of this size."""
    columns = max(int(inches * 72 / (_LETTER * size)), 8)
    return "\n".join(textwrap.fill(line, columns) for line in words.splitlines())


def lines_height(words: str, size: float) -> float:
    """The height in inches of text, by its lines."""
    return (words.count("\n") + 1) * _LINE * size / 72
