"""How fast: the round in which each curve first reaches FedSGDA's final accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedmm.reporting.curves import Curve
from fedmm.reporting.style import FAINT, lines_height, write
from fedmm.reproduction.panels import SMALL, Line, Panel, final_percent
from fedmm.reproduction.tables import ABSENT, escaped

_NEVER = "not reached"


@dataclass(frozen=True)
class Rates:
    """FedSGDA's final accuracy in percent, None if it has none, and the round in which each line first reaches it."""

    level: float | None
    reached: Sequence[tuple[Line, int | None]]

    @property
    def height(self) -> float:
        return (1 + len(self.reached)) * lines_height("", SMALL)


def rates_of(panel: Panel) -> Rates:
    """The rates of a panel."""
    level = final_percent([run for line in panel.lines for run in line.runs if run.algorithm == "fedsgda"])
    return Rates(level, [] if level is None else [(line, first_reach(line.curve, level)) for line in panel.lines])


def first_reach(curve: Curve, level: float) -> int | None:
    """The first round in which the mean over seeds is at ``level`` percent or above, None if it never is."""
    return next((t for t, value in zip(curve.rounds, curve.mean, strict=True) if value >= level - 1e-9), None)


def mark_rates(axes: Axes, rates: Rates) -> None:
    """The level as a line, and a dot where a curve reaches it."""
    if rates.level is None:
        return
    axes.axhline(rates.level, color=FAINT, linewidth=0.6, zorder=1.5)
    for line, t in rates.reached:
        if t is not None:
            value = line.curve.mean[line.curve.rounds.index(t)]
            axes.plot(t, value, "o", color=line.stroke.colour, ms=4, mec="white", mew=0.7, zorder=6, clip_on=False)


def write_rates(figure: Figure, rates: Rates, left: float, top: float, width: float) -> None:
    """A line of text a curve, in a column from ``left`` and ``top`` (inches)."""
    heading = "FedSGDA: not computed" if rates.level is None else f"first reaches {rates.level:.1f} % in round"
    write(figure, left, top, heading, fontsize=SMALL, color=FAINT)
    for line, t in rates.reached:
        top += lines_height("", SMALL)
        write(figure, left, top, line.label, fontsize=SMALL, color=line.stroke.colour, weight="bold")
        write(figure, left + width, top, _NEVER if t is None else f"{t:,}", fontsize=SMALL, ha="right")


def rates_table(panels: Sequence[Panel]) -> str:
    """The same for all panels as a Markdown table."""
    rates = {panel.title: rates_of(panel) for panel in panels}
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    lines = [["", "FedSGDA's final (%)", *labels], [":--", "--:", *["--:"] * len(labels)]]
    for title, found in rates.items():
        rounds = {line.label: _NEVER if t is None else f"{t:,}" for line, t in found.reached}
        level = ABSENT if found.level is None else f"{found.level:.1f}"
        lines.append([title, level, *(rounds.get(label, ABSENT) for label in labels)])
    table = "".join("| " + " | ".join(escaped(cell) for cell in line) + " |\n" for line in lines)
    return table + "\nThe round in which the mean over seeds first reaches FedSGDA's final accuracy.\n"
