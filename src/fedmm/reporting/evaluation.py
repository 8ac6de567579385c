"""A picture of an evaluation: confusion matrix and reliability diagram; with two classes also ROC and precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import SubFigure

from fedmm.core.errors import require
from fedmm.core.files import require_replaceable
from fedmm.reporting.style import FAINT, INK, RULE, SMALL, TEXT, Strip, compose, quiet

_SIDE, _LETTER = 3.9, 0.085
"""Inches: of the matrix, about, and of a letter in a class's name."""
_MOST_NUMBERS, _MOST_NAMES, _LONGEST = 12, 40, 12
"""Classes up to which cells hold their percentage, and axes the classes' names; letters of a name."""
_BLUE = "#0072B2"
_SHADES = LinearSegmentedColormap.from_list("shares", ["#FFFFFF", "#C6DDEE", _BLUE, "#00314D"])
_ENDINGS = (".png", ".svg", ".pdf")
_WRITER = "fedmm evaluate"
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def require_own_picture(path: Path) -> None:
    """Refuse a name that says no format, and to replace a file that is no picture of an evaluation."""
    require(path.suffix.lower() in _ENDINGS, f"--picture {path} must end in {', '.join(_ENDINGS)}")
    require_replaceable(
        path, "--picture", f"a picture by {_WRITER}", lambda path: _WRITER.encode() in path.read_bytes()
    )


def draw_evaluation(evaluation: Mapping[str, Any], path: Path) -> Path:
    """Write a PNG, SVG or PDF of the table that ``fedmm evaluate --out`` writes."""
    title = f"{evaluation['label']} on {Path(str(evaluation['data'])).name or evaluation['data']}"
    known, labelled = evaluation["rows"], evaluation["labelled_rows"]
    auc = ""
    if evaluation["auc"] is not None:
        auc = f", AUROC {evaluation['auc']:.3f}, average precision {evaluation['average_precision']:.3f}"
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
    strips = [Strip(_SIDE + 1.5, lambda part: _draw(part, evaluation))]
    if evaluation["curves"] is not None:
        strips.append(Strip(_SIDE, lambda part: _draw_curves(part, evaluation)))
    return compose(title, about, strips, path, _WRITER)


def _draw(part: SubFigure, evaluation: Mapping[str, Any]) -> None:
    grid = part.subplot_mosaic(
        [["confusion", "right"], ["confusion", "rows"]], height_ratios=[3, 1], width_ratios=[1.1, 1]
    )
    _draw_confusion(grid["confusion"], evaluation)
    _draw_reliability(grid["right"], grid["rows"], [bin_ for bin_ in evaluation["bins"] if bin_["rows"]])
    titles = {"confusion": "what each class was taken for (%)", "right": "share that is right, by probability"}
    for name, title in titles.items():
        grid[name].set_title(title, loc="left", fontsize=TEXT, weight="bold", color=INK)


def _draw_curves(part: SubFigure, evaluation: Mapping[str, Any]) -> None:
    left, right = part.subplots(1, 2)
    second, curves = evaluation["classes"][1], evaluation["curves"]
    share = second["support"] / evaluation["rows"]
    for axes, name, chance, words in (
        (left, "roc", ((0, 1), (0, 1)), ("ROC", "false positive rate", "true positive rate")),
        (right, "precision_recall", ((0, 1), (share, share)), ("precision and recall", "recall", "precision")),
    ):
        quiet(axes)
        axes.plot(*chance, color=FAINT, linewidth=1.2, linestyle=(0, (4, 2)))
        x, y = zip(*curves[name], strict=True)
        axes.plot(x, y, color=_BLUE, linewidth=1.6, drawstyle="default" if name == "roc" else "steps-pre")
        axes.set(xlim=(0, 1), ylim=(0, 1.01), xticks=_TICKS, yticks=_TICKS)
        title, across, up = words
        axes.set_title(
            f"{title} of {_short(str(second['name']))!r}", loc="left", fontsize=TEXT, weight="bold", color=INK
        )
        axes.set_xlabel(across, fontsize=SMALL, color=FAINT)
        axes.set_ylabel(up, fontsize=SMALL, color=FAINT)


def _draw_confusion(axes: Axes, evaluation: Mapping[str, Any]) -> None:
    counts = np.asarray(evaluation["confusion"], dtype=np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    axes.imshow(shares, cmap=_SHADES, vmin=0.0, vmax=1.0, interpolation="nearest", aspect="auto")
    size = min(SMALL, 0.55 * 72 * _SIDE / len(counts))
    if len(counts) <= _MOST_NUMBERS:
        for row, column in np.argwhere(counts > 0):
            share = shares[row, column]
            number = f"{100 * share:.0f}" if share >= 0.005 else "<1"
            colour = "white" if share > 0.45 else INK
            axes.text(column, row, number, ha="center", va="center", fontsize=size, color=colour)
    names = [_short(str(class_["name"])) for class_ in evaluation["classes"]] if len(counts) <= _MOST_NAMES else []
    wide = _LETTER * max(map(len, names), default=0) > 0.8 * _SIDE / len(counts)
    axes.set_xticks(range(len(names)), names, rotation=90 if wide else 0, fontsize=size)
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.tick_params(length=0, labelcolor=FAINT)
    axes.set_ylabel("class", fontsize=SMALL, color=FAINT)
    axes.set_xlabel("predicted class", fontsize=SMALL, color=FAINT)
    axes.spines[:].set_color(RULE)


def _draw_reliability(axes: Axes, below: Axes, bins: Sequence[Mapping[str, float]]) -> None:
    quiet(axes)
    quiet(below)
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.2, linestyle=(0, (4, 2)))
    for bin_ in bins:
        middle, wide = (bin_["low"] + bin_["high"]) / 2, 0.92 * (bin_["high"] - bin_["low"])
        axes.bar(middle, bin_["accuracy"], wide, color=_BLUE, alpha=0.85)
        axes.plot([middle - wide / 2, middle + wide / 2], [bin_["confidence"]] * 2, color=INK, linewidth=1.6)
        below.bar(middle, bin_["rows"], wide, color=FAINT)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=_TICKS, yticks=_TICKS)
    axes.set_xticklabels([])
    below.set(xlim=(0, 1), xticks=_TICKS)
    below.set_ylabel("rows", fontsize=SMALL, color=FAINT)
    below.set_xlabel("probability of the predicted class (black: its mean)", fontsize=SMALL, color=FAINT)


def _short(name: str) -> str:
    plain = name.encode("utf-8", "replace").decode("utf-8")
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
