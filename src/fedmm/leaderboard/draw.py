"""The leaderboard's page and figure, made from its results file alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from fedmm.core.errors import count_of
from fedmm.core.files import atomic_write
from fedmm.leaderboard.results import Result, read_results
from fedmm.leaderboard.tables import Standing, better_than_ours, overview, problem_table, standings
from fedmm.reporting.style import AXIS, FAINT, INK, RULE, SMALL, Strip, compose, quiet, wrap_text

_OURS, _OTHERS = "#D55E00", "#0072B2"
_ROW = 0.23
"""Height of a method's row in inches."""


def draw_board(results: Path, out: Path) -> list[Path]:
    """Write ``leaderboard.png``, ``.svg`` and ``.md`` from a results file into a folder; return their paths."""
    runs = read_results(results)
    found = standings(runs)
    page = out / "leaderboard.md"
    with atomic_write(page) as partial:
        partial.write_text(_page(found, runs), "utf-8")
    strips = [_strip(title, own) for title, own in found.items()]
    seeds = len({run.seed for run in runs})
    about = (
        f"Median and range over {count_of(seeds, 'seed')}. A hollow dot at the right edge: the target was "
        "not reached. Orange: FedMM and its variants. Dotted: the target."
    )
    return [*(compose("Leaderboard", about, strips, out / f"leaderboard.{kind}") for kind in ("png", "svg")), page]


def _page(found: Mapping[str, Sequence[Standing]], runs: Sequence[Result]) -> str:
    parts = [
        "# Leaderboard\n",
        "![Leaderboard](leaderboard.svg)\n",
        "## Bytes to the target\n",
        "kB that all clients uploaded until the target was reached, the median over the seeds.\n",
        overview(found),
    ]
    for title, own in found.items():
        goal = own[0].goal
        sign = "at least" if goal.higher else "at most"
        parts += [
            f"## {title[0].upper()}{title[1:]}\n",
            f"Target: {goal.metric}, {sign} {goal.target:g}. {better_than_ours(own)}\n",
            problem_table(own),
        ]
    return "\n".join([*parts, "## How it was made\n", _facts(runs)])


def _facts(runs: Sequence[Result]) -> str:
    def distinct(name: str) -> list[str]:
        given = (run.about.get(name) for run in runs)
        shown = (
            ", ".join(f"{k} {v}" for k, v in option.items()) if isinstance(option, dict) else option for option in given
        )
        return [str(value) for value in dict.fromkeys(shown) if value]

    seeds = sorted({run.seed for run in runs})
    facts = {
        "runs": f"{len(runs):,}, seeds {', '.join(map(str, seeds))}",
        "hardware": "; ".join(distinct("hardware")),
        "versions": "; ".join(distinct("versions")),
    }
    commands = "".join(f"    {command}\n" for command in distinct("command"))
    return f"{commands}\n" + "".join(f"- {name}: {words}\n" for name, words in facts.items() if words)


def _strip(title: str, own: Sequence[Standing]) -> Strip:
    """Return three axes with a row per method: bytes and gradients to the target, and the final value."""
    goal = own[0].goal

    def draw(part: SubFigure) -> None:
        axes = part.subplots(1, 3, sharey=True)
        kilobytes = [[value / 1e3 for value in standing.bytes_up] for standing in own]
        _draw_dots(axes[0], own, kilobytes, "kB to the target")
        _draw_dots(axes[1], own, [standing.gradients for standing in own], "gradients to the target")
        _draw_dots(axes[2], own, [standing.finals for standing in own], goal.metric, log=not goal.higher)
        axes[2].axvline(goal.target, color=FAINT, linewidth=0.8, linestyle=":")
        axes[0].set_yticks(range(len(own)), [standing.method for standing in own], fontsize=SMALL, color=INK)
        axes[0].invert_yaxis()

    return Strip(AXIS + 0.55 + _ROW * len(own), draw, title)


def _draw_dots(
    axes: Axes, own: Sequence[Standing], values: Sequence[Sequence[float]], name: str, *, log: bool = False
) -> None:
    """Draw the median and the range of each method's values; an infinite median is hollow, at the right edge."""
    quiet(axes)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.set_xlabel(wrap_text(name, 2.6, SMALL), fontsize=SMALL, color=FAINT)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    if log:
        axes.set_xscale("log")
        axes.xaxis.set(major_locator=LogLocator(numticks=4), minor_locator=NullLocator(), major_formatter="{x:g}")
    edge = 1.1 * max((value for numbers in values for value in numbers if math.isfinite(value)), default=1.0)
    for row, (standing, numbers) in enumerate(zip(own, values, strict=True)):
        if standing.diverged == len(standing.runs):
            beside = axes.get_yaxis_transform()
            axes.text(0.98, row, "diverged", transform=beside, fontsize=SMALL, color=FAINT, ha="right", va="center")
        elif numbers:
            colour = _OURS if standing.method.startswith("fedmm") else _OTHERS
            shown = [min(value, edge) for value in numbers]
            middle = median(shown)
            axes.hlines(row, min(shown), max(shown), colour, linewidths=1.6, alpha=0.5)
            axes.plot(
                middle, row, "o", color=colour, markersize=5, markerfacecolor="white" if middle == edge else colour
            )
