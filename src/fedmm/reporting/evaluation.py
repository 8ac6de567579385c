"""A picture of an evaluation: confusion matrix and reliability diagram side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from fedmm.reporting.figures import compose
from fedmm.reporting.style import AXIS, FAINT, INK, MARGIN, RULE, SMALL, WIDTH, place, quiet, write

_SIDE, _HEADING = 3.9, 0.34
_LETTER, _LEAST, _NAME = 0.085, 0.3, 0.26
"""Inches: of a letter in a class's name, around the names at least, and for the name of an axis."""
_MOST_NUMBERS, _MOST_NAMES, _LONGEST = 12, 40, 12
"""Classes up to which cells hold their percentage, and axes the classes' names; letters of a name."""
_BLUE = "#0072B2"
_SHADES = LinearSegmentedColormap.from_list("shares", ["#FFFFFF", "#C6DDEE", _BLUE, "#00314D"])
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def draw_evaluation(evaluation: Mapping[str, Any], path: Path) -> Path:
    """Write a PNG, SVG or PDF of the table that ``fedmm evaluate --out`` writes."""
    title = f"{evaluation['label']} on {Path(str(evaluation['data'])).name or evaluation['data']}"
    known, labelled = evaluation["rows"], evaluation["labelled_rows"]
    auc = "" if evaluation["auc"] is None else f", AUC {evaluation['auc']:.3f}"
    whole = (
        f"accuracy {evaluation['accuracy_of_all']:.1%} of all {labelled} labelled rows; " if known < labelled else ""
    )
    rows = f"{known} of them with a known class" if known < labelled else f"{known} rows"
    low, high = evaluation["intervals"]["accuracy"]
    about = (
        f"{whole}{rows}: accuracy {evaluation['accuracy']:.1%} ({low:.1%} to {high:.1%}; majority class "
        f"{evaluation['majority']:.1%}), balanced {evaluation['balanced_accuracy']:.1%}{auc}, macro-F1 "
        f"{evaluation['macro_f1']:.3f}; ECE {evaluation['ece']:.3f}, Brier {evaluation['brier']:.3f}, NLL "
        f"{evaluation['nll']:.3f}; round {evaluation['round']} ({evaluation['checkpoint']})"
    )
    return compose(title, about, [_Panel(evaluation)], path)


class _Panel:
    def __init__(self, evaluation: Mapping[str, Any]) -> None:
        self._names = [_short(str(each["name"])) for each in evaluation["classes"]]
        self._counts = np.asarray(evaluation["confusion"], dtype=np.float64)
        self._bins = [each for each in evaluation["bins"] if each["rows"]]
        self._longest = _LETTER * max(map(len, self._names))
        self._label = max(_LEAST, self._longest) if len(self._names) <= _MOST_NAMES else _LEAST
        self.height = _HEADING + _SIDE + max(self._label + _NAME, AXIS)

    def draw(self, figure: Figure, top: float) -> None:
        """Draw both with their upper edge at ``top`` inches below the figure's."""
        write(figure, MARGIN, top, "what each class was taken for (%)", weight="bold")
        self._confusion(figure, MARGIN + _NAME + self._label, top + _HEADING)
        left = WIDTH - MARGIN - _SIDE
        write(figure, left - 0.5, top, "share that is right, by probability", weight="bold")
        self._reliability(figure, left, top + _HEADING, _SIDE - 0.15)

    def _confusion(self, figure: Figure, left: float, top: float) -> None:
        axes = place(figure, left, top, _SIDE, _SIDE)
        totals = self._counts.sum(axis=1, keepdims=True)
        shares = np.divide(self._counts, totals, out=np.zeros_like(self._counts), where=totals > 0)
        axes.imshow(shares, cmap=_SHADES, vmin=0.0, vmax=1.0, interpolation="nearest")
        count = len(self._names)
        size = min(SMALL, 0.55 * 72 * _SIDE / count)
        if count <= _MOST_NUMBERS:
            for row, column in np.argwhere(self._counts > 0):
                share = shares[row, column]
                number = f"{100 * share:.0f}" if share >= 0.005 else "<1"
                colour = "white" if share > 0.45 else INK
                axes.text(column, row, number, ha="center", va="center", fontsize=size, color=colour)
        names = self._names if count <= _MOST_NAMES else []
        upright = 90 if self._longest > 0.8 * _SIDE / count else 0
        axes.set_xticks(range(len(names)), names, rotation=upright, fontsize=size)
        axes.set_yticks(range(len(names)), names, fontsize=size)
        axes.tick_params(length=0, labelcolor=FAINT)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_parse_math(False)
        axes.set_ylabel("class", fontsize=SMALL, color=FAINT)
        axes.set_xlabel("predicted class", fontsize=SMALL, color=FAINT)
        axes.spines[:].set_color(RULE)

    def _reliability(self, figure: Figure, left: float, top: float, width: float) -> None:
        part = 0.24 * _SIDE
        axes = place(figure, left, top, width, _SIDE - part - 0.15)
        quiet(axes)
        axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.2, linestyle=(0, (4, 2)))
        below = place(figure, left, top + _SIDE - part, width, part)
        quiet(below)
        for each in self._bins:
            middle, wide = (each["low"] + each["high"]) / 2, 0.92 * (each["high"] - each["low"])
            axes.bar(middle, each["accuracy"], wide, color=_BLUE, alpha=0.85)
            axes.plot([middle - wide / 2, middle + wide / 2], [each["confidence"]] * 2, color=INK, linewidth=1.6)
            below.bar(middle, each["rows"], wide, color=FAINT)
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=_TICKS, yticks=_TICKS)
        axes.set_xticklabels([])
        below.set(xlim=(0, 1), xticks=_TICKS)
        below.set_ylabel("rows", fontsize=SMALL, color=FAINT)
        below.set_xlabel("probability of the predicted class (black: its mean)", fontsize=SMALL, color=FAINT)


def _short(name: str) -> str:
    plain = name.encode("utf-8", "replace").decode("utf-8")
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
