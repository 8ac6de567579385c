"""How the curves of a figure are told apart: by colour, and by dash where there is no colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import to_hex

from fedmm.reporting.style import Stroke, strokes
from fedmm.reproduction.results import PaperRun

_SOLID = "-"
_DASHES: tuple[Any, ...] = (
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.4, 1.2, 1.4)),
    (0, (3, 1.2)),
    (0, (6, 1.4, 1.2, 1.4, 1.2, 1.4)),
    (0, (9, 2)),
)
_OURS, _OTHERS = 1.6, 1.15
"""Widths of lines in points."""
_DARK, _LIGHT = 0.0, 0.82
"""The part of the colour map that a family of curves takes; beyond it yellow fades on white."""


def looks(runs: Sequence[PaperRun]) -> dict[str, Stroke]:
    """A stroke for each label, in the order of the runs.

    Methods keep the colour they have in all figures. Labels of one method alone are a family in its order, and run
    through a colour map of even lightness steps. The first FedMM, or else the first label, is the solid line.
    """
    groups: dict[str, list[PaperRun]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    found = strokes(groups)
    family = len({run.algorithm for run in runs}) == 1 and len(groups) > 2
    ours = next((label for label in groups if groups[label][0].algorithm == "fedmm"), next(iter(groups), ""))
    rest = [label for label in groups if label != ours]
    for position, (label, stroke) in enumerate(found.items()):
        colour = _family_colour(position / (len(groups) - 1)) if family else stroke.colour
        dash = _SOLID if label == ours else _DASHES[rest.index(label) % len(_DASHES)]
        wide = groups[label][0].algorithm == "fedmm" and not family
        found[label] = Stroke(colour, dash, _OURS if wide else _OTHERS, stroke.rank)
    return found


def _family_colour(place: float) -> str:
    return str(to_hex(colormaps["viridis"](_DARK + place * (_LIGHT - _DARK)))).upper()
