"""The figures of a run and of a comparison, written into the folder they describe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from matplotlib.figure import Figure

from fedmm.core.validators import BELIEVED
from fedmm.reporting.boundaries import BoundaryPanel, Plane
from fedmm.reporting.curves import CurvePanel
from fedmm.reporting.images import ImagePanel
from fedmm.reporting.read import Comparison, Run, read_comparison, read_run
from fedmm.reporting.rounds import RoundsPanel
from fedmm.reporting.style import FAINT, MARGIN, TEXT, TITLE, lines_height, new_figure, save, strokes, wrapped, write

_BETWEEN = 0.3
"""Inches from one panel to the next."""


class Panel(Protocol):
    """A part of a figure over its whole width, ``height`` inches high."""

    height: float

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the part with its upper edge at ``top`` inches below the figure's."""


def draw_run(folder: Path | str) -> list[Path]:
    """Write ``rounds.png``: accuracies, consensus gap, dual norm and drift over the rounds, above both domains."""
    run = read_run(folder)
    stopped = "" if run.status == "completed" else f", {run.status}"
    about = f"{run.method}, {run.data}, seed {run.seed}{stopped}"
    return [compose(run.label, about, [RoundsPanel(run), *_domains([run], [run])], run.folder / "rounds.png")]


def draw_comparison(folder: Path | str) -> list[Path]:
    """Write ``comparison.png``: target accuracy over the rounds, above samples of both domains where runs kept any.

    Where no target labels are known, what was measured without them takes its place.
    """
    comparison = read_comparison(folder)
    looks = strokes(comparison.groups())
    curves = [CurvePanel(comparison, looks, column) for column in _drawn_columns(comparison)]
    firsts = [runs[0] for runs in comparison.groups().values()]
    panels = [*curves, *_domains(firsts, comparison.runs)]
    return [compose(comparison.title, _drawn(comparison), panels, comparison.folder / "comparison.png")]


def compose(title: str, about: str, panels: Sequence[Panel], path: Path) -> Path:
    """A title with a line of explanation, and panels below each other."""
    title, about = wrapped(title, 80), wrapped(about, 96)
    below_title = MARGIN + lines_height(title, TITLE) + 0.06
    top = below_title + lines_height(about, TEXT) + 0.16
    figure = new_figure(top + sum(panel.height for panel in panels) + _BETWEEN * (len(panels) - 1) + MARGIN)
    write(figure, MARGIN, MARGIN, title, fontsize=TITLE, weight="bold")
    write(figure, MARGIN, below_title, about, color=FAINT)
    for panel in panels:
        panel.draw(figure, top)
        top += panel.height + _BETWEEN
    return save(figure, path)


def _domains(firsts: Sequence[Run], runs: Sequence[Run]) -> list[Panel]:
    """The boundary of each label's first run for points in the plane, sample images for images, else nothing."""
    planes = [
        Plane(run.label, run.target_accuracy, run.samples, run.boundary)
        for run in firsts
        if run.samples is not None and run.samples.points and run.boundary is not None
    ]
    if planes:
        seeds = {run.seed for run in firsts}
        of_seed = f", seed {seeds.pop()}" if len(seeds) == 1 and len(runs) > len(firsts) else ""
        return [BoundaryPanel(planes, f"decision boundary after the last round{of_seed}")]
    images = [run.samples for run in runs if run.samples is not None and run.samples.images]
    return [ImagePanel(images[0])] if images else []


def _drawn_columns(comparison: Comparison) -> list[str]:
    """Target accuracy; or, where it was never measured, the validators that the rule on adapting looks at."""
    measured = [
        column
        for column in ("target_accuracy", *BELIEVED, "source_risk")
        if any(run.series(column).rounds for run in comparison.runs)
    ]
    return ["target_accuracy"] if "target_accuracy" in measured or not measured else measured


def _drawn(comparison: Comparison) -> str:
    columns = _drawn_columns(comparison)
    what = "target accuracy"
    if columns and "target_accuracy" not in columns:
        what = f"no target labels are known: {', '.join(columns).replace('_', ' ')} (no proof of accuracy)"
    counts = [len(runs) for runs in comparison.groups().values()]
    low, high = min(counts), max(counts)
    if high == 1:
        return what
    seeds = str(high) if low == high else f"{low} to {high}"
    return f"{what}, mean over {seeds} seeds; band: lowest to highest"
