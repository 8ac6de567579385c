"""The pictures of docs/concepts.md, and the numbers beside them.

    python docs/pictures.py [why] [game] [moons]

Written to docs/images/; about a minute for all on one core.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

import fedmm
from fedmm.config.demos import demo_experiments
from fedmm.reporting.read import read_run
from fedmm.reporting.strips import Plane, boundary_strip
from fedmm.reporting.style import FAINT, INK, RULE, SMALL, TEXT, new_figure, quiet, save, whole_part

IMAGES = Path(__file__).parent / "images"
WIDTH = 7.6
"""Inches: about the width of a page's text, so that letters are as large as the page's."""
SIDE = 3.25
COLOURS = {"FedSGDA": "#56B4E9", "FedAvgGDA": "#0072B2", "FedMM": "#D55E00"}
OWN = ("#7B3294", "#1B7837")
Points = NDArray[np.float64]


# The game -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Game:
    """f(x, y) = a/2 (x - p)^2 + b (x - p)(y - q) - c/2 (y - q)^2, with its saddle at (p, q)."""

    a: float
    b: float
    c: float
    p: float
    q: float

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = x - self.p, y - self.q
        return (self.a / 2 * x**2 + self.b * x * y - self.c / 2 * y**2).sum()

    def field(self, at: Points) -> Points:
        """The signed field F(x, y) = (df/dx, -df/dy)."""
        x, y = at[0] - self.p, at[1] - self.q
        return np.array([self.a * x + self.b * y, self.c * y - self.b * x])


CLIENTS = (Game(3.0, 1.0, 0.5, p=-2.0, q=-1.0), Game(0.5, 1.0, 2.0, p=2.0, q=1.0))
START = np.array([2.5, -2.0])
ROUNDS, LOOK = 40, 25
RATES: dict[str, Any] = {"lr_min": 0.05, "lr_max": 0.05}
METHODS = {
    "FedSGDA": fedmm.FedSGDA(**RATES),
    "FedAvgGDA": fedmm.FedAvgGDA(**RATES, local_steps=20),
    "FedMM": fedmm.FedMM(**RATES, local_steps=20, penalty_min=1.0, penalty_max=1.0),
}


def saddle() -> Points:
    """Where the clients' fields sum to 0."""
    matrices = np.array([[[f.a, f.b], [-f.b, f.c]] for f in CLIENTS])
    return np.linalg.solve(matrices.sum(0), -np.array([f.field(np.zeros(2)) for f in CLIENTS]).sum(0))


def solved(
    algorithm: fedmm.Algorithm, rounds: int, start: Points = START, clients: Sequence[Game] = CLIENTS
) -> fedmm.Solution:
    """What the clients agree on after some rounds."""
    x, y = (torch.tensor([value], dtype=torch.float64) for value in start)
    return fedmm.solve(clients, (x, y), algorithm, rounds)


def ends(algorithm: fedmm.Algorithm, rounds: int, **where: Any) -> list[fedmm.Solution]:
    """The same after 1, 2, ... rounds."""
    return [solved(algorithm, t, **where) for t in range(1, rounds + 1)]


def path(algorithm: fedmm.Algorithm, rounds: int, **where: Any) -> Points:
    """The server's points after 0, 1, ... rounds, [rounds + 1, 2]."""
    return np.array([where.get("start", START), *(point(end) for end in ends(algorithm, rounds, **where))])


def point(end: fedmm.Solution) -> tuple[float, float]:
    """(x, y) of the server."""
    assert isinstance(end.omega, Tensor)
    assert isinstance(end.psi, Tensor)
    return float(end.omega), float(end.psi)


def panels(left: str, right: str) -> tuple[Figure, Axes, Axes]:
    """A figure of the plane of (x, y) beside an axis of rounds, each below its title."""
    figure = new_figure(SIDE + 1.2, WIDTH)
    axes, rounds = figure.subplots(1, 2)
    for part, title in ((axes, left), (rounds, right)):
        part.set_title(title, loc="left", weight="bold", fontsize=TEXT - 1, color=INK)
    quiet(rounds)
    axes.set(xlim=(-2.9, 2.9), ylim=(-2.9, 2.9), xticks=[-2, 0, 2], yticks=[-2, 0, 2], box_aspect=1)
    axes.set_xlabel("x descends", fontsize=SMALL, color=FAINT, labelpad=2)
    axes.set_ylabel("y ascends", fontsize=SMALL, color=FAINT, labelpad=0)
    axes.tick_params(labelsize=SMALL, labelcolor=FAINT, length=0)
    axes.grid(color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_color(RULE)
    return figure, axes, rounds


def draw_saddles(axes: Axes) -> None:
    """A square where each client's own saddle is, a star where that of their mean is."""
    for number, (own, colour) in enumerate(zip(CLIENTS, OWN, strict=True), start=1):
        axes.plot(own.p, own.q, marker="s", markersize=7, color=colour, zorder=5)
        place_at = (own.p, own.q - 0.35) if number == 1 else (own.p, own.q + 0.22)
        below: dict[str, Any] = {"va": "top"} if number == 1 else {"va": "bottom"}
        axes.annotate(f"saddle of\nclient {number}", place_at, ha="center", fontsize=SMALL, color=colour, **below)
    axes.plot(*saddle(), marker="*", markersize=17, color=INK, markeredgecolor="white", zorder=7)


def draw_why() -> None:
    """One round that begins at the saddle: with averaging it does not stay there, with duals it does."""
    figure, axes, rounds = panels("FedAvgGDA, one round from the saddle", "FedMM's duals, their part in x")
    at = saddle()
    local = [path(METHODS["FedSGDA"], 20, start=at, clients=[f]) for f in CLIENTS]
    mean = np.mean([steps[-1] for steps in local], axis=0)
    assert np.allclose(mean, point(solved(METHODS["FedAvgGDA"], 1, start=at)))

    for steps, colour in zip(local, OWN, strict=True):
        axes.plot(*steps.T, color=colour, marker=".", markersize=6, linewidth=1.4)
        axes.plot(*np.array([steps[-1], mean]).T, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    draw_saddles(axes)
    axes.plot(*mean, marker="o", markersize=10, color=COLOURS["FedAvgGDA"], markeredgecolor="white", zorder=8)
    axes.annotate("mean", (mean[0] + 0.2, mean[1] - 0.2), fontsize=SMALL, color=COLOURS["FedAvgGDA"], va="top")
    axes.annotate("saddle", (at[0] - 0.1, at[1] - 0.3), fontsize=SMALL, color=INK, va="top", ha="center")

    axes = rounds
    after = [[own["dual"].numpy() for own in end.clients] for end in ends(METHODS["FedMM"], LOOK)]
    duals = np.array([np.zeros_like(after[0]), *after])
    for number, (f, colour) in enumerate(zip(CLIENTS, OWN, strict=True)):
        pull = f.field(at)[0]
        axes.plot(duals[:, number, 0], color=colour, linewidth=2)
        axes.axhline(-pull, color=colour, linewidth=1, linestyle=(0, (4, 3)))
        note = f"client {number + 1}\n-F$_{number + 1}$ = {-pull:.2f}"
        axes.annotate(note, (LOOK, -pull), (5, 0), textcoords="offset points", va="center", **_of(colour))
    axes.set(xlim=(0, LOOK), xticks=range(0, LOOK + 1, 5))
    axes.set_xlabel("round", fontsize=SMALL, color=FAINT, labelpad=2)
    save(figure, IMAGES / "why.svg")
    print(f"saddle ({at[0]:.3f}, {at[1]:.3f}); FedAvgGDA goes to ({mean[0]:.3f}, {mean[1]:.3f}) in one round")
    for number, (f, dual) in enumerate(zip(CLIENTS, duals[-1], strict=True), start=1):
        print(f"client {number}: F {f.field(at).round(3)}, dual after {LOOK} rounds {dual.round(3)}")


def draw_game() -> None:
    """Where the server's point goes, and how far from the saddle it is."""
    figure, axes, rounds = panels(f"the server's point, {ROUNDS} rounds", "distance to the saddle of the mean")
    paths = {name: path(algorithm, ROUNDS) for name, algorithm in METHODS.items()}
    for name, points in paths.items():
        axes.plot(*points.T, color=COLOURS[name], marker=".", markersize=5, linewidth=1.6, zorder=3 + (name == "FedMM"))
    draw_saddles(axes)
    axes.plot(*START, marker="o", markersize=6, color=INK)
    axes.annotate("start", (START[0], START[1] - 0.2), fontsize=SMALL, color=INK, ha="center", va="top")

    axes = rounds
    for name, points in paths.items():
        distances = np.linalg.norm(points - saddle(), axis=1)
        axes.semilogy(distances, color=COLOURS[name], linewidth=2)
        axes.annotate(
            name, (ROUNDS, distances[-1]), (5, 0), textcoords="offset points", va="center", **_of(COLOURS[name])
        )
        print(f"{name}: {distances[-1]:.1e} from the saddle after {ROUNDS} rounds, {distances[10]:.1e} after 10")
    axes.set(xlim=(0, ROUNDS), xticks=range(0, ROUNDS + 1, 10), yticks=[10.0**power for power in range(0, -11, -2)])
    axes.minorticks_off()
    axes.set_xlabel("round", fontsize=SMALL, color=FAINT, labelpad=2)
    save(figure, IMAGES / "game.svg")


def _of(colour: str) -> dict[str, Any]:
    return {"fontsize": SMALL, "color": colour, "annotation_clip": False}


# Two moons ------------------------------------------------------------------------------------------------------------

LOOKS = (10, 50, 150)
LABELS = ("source only", "FedAvgGDA", "FedMM")


def draw_moons() -> None:
    """The boundary of three methods as training goes on."""
    planes = []
    with tempfile.TemporaryDirectory() as folder:
        for each in demo_experiments("moons", 1):
            if each.run.label not in LABELS:
                continue
            for rounds in LOOKS:
                where = Path(folder) / f"{each.run.label}-{rounds}"
                fedmm.run_experiment(replace(each, run=replace(each.run, rounds=rounds)), where, progress=False)
                run = read_run(where)
                assert run.samples is not None
                assert run.boundary is not None
                label = f"{each.run.label}, {rounds} rounds"
                planes.append(Plane(label, run.target_accuracy, run.samples, run.boundary))
                print(f"{label}: {run.target_accuracy:.1%}", flush=True)
    strip = boundary_strip(planes, "target accuracy and decision boundary, seed 0")
    figure = new_figure(strip.height)
    part = whole_part(figure)
    part.suptitle(strip.heading, x=0.014, ha="left", fontsize=TEXT, weight="bold", color=INK)
    strip.draw(part)
    save(figure, IMAGES / "moons_boundaries.png", dpi=150)


PICTURES = {"why": draw_why, "game": draw_game, "moons": draw_moons}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
