"""Compare the convergence theorem with what FedMM needs, on a nonconvex-strongly-concave game of three unlike clients.

    python benchmarks/theory.py [--draw-only]

FedMM at equal penalties over decades and at the smallest penalties of each proof, with learning rates 1 / (mu + 2 L) on
each side, and FedAvgGDA; 20 local steps. Written to benchmarks/results/theory.json, drawn to docs/images/theory.png.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from common import processor
from matplotlib.axes import Axes
from torch import Tensor

from fedmm import FedAvgGDA, FedMM
from fedmm.reporting.style import FAINT, INK, RULE, SMALL, new_figure, quiet, save
from fedmm.theory import (
    Constants,
    Observation,
    Phi,
    around,
    estimate_constants,
    least_penalties,
    observe,
    penalty_range,
)
from fedmm.theory.spectra import Function

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "theory.json"
PICTURE = ROOT / "docs" / "images" / "theory.png"
CLIENTS = ((-2.0, 2.5, 1.0, 1.0), (3.0, 0.0, 0.5, -2.0), (0.0, -2.4, -0.6, 1.5))
CLOSED = Constants.of(L11=6.5, L12=1.0, L22=1.0, B=1.0, N=3)
SWEEP = (0.1, 0.3, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0)
RATES = (0.002, 0.01)
GOAL = 1e-6
STEPS = 20
SHORT = 20
"""Rounds of runs that would take too long to converge."""


def client(centre: float, bend: float, coupling: float, pull: float) -> Function:
    def f(w: Tensor, p: Tensor) -> Tensor:
        return (2 * torch.log1p((w - centre) ** 2) + bend / 2 * w**2 + coupling * w * p - p**2 / 2 + pull * p).sum()

    return f


def start() -> tuple[Tensor, Tensor]:
    return torch.full((1,), 2.0, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)


def fedmm(mu1: float, mu2: float) -> FedMM:
    return FedMM(1 / (mu1 + 2 * CLOSED.L11), 1 / (mu2 + 2 * CLOSED.L22), mu1, mu2, local_steps=STEPS)


def reached(seen: Observation) -> int | None:
    """Return the round from which the gradient stays below the goal, or None if there is none."""
    above = [each.round for each in seen.rounds if each.gradient_norm >= GOAL]
    if seen.diverged or not seen.rounds or (above and above[-1] == seen.rounds[-1].round):
        return None
    return (above[-1] if above else 0) + 1


def at_penalties(functions: list[Function], mu1: float, mu2: float, rounds: int) -> dict[str, Any]:
    seen = observe(functions, start(), fedmm(mu1, mu2), rounds)
    worst = max((float(torch.maximum(each.e_omega, each.e_psi).max()) for each in seen.rounds), default=0.0)
    return {
        "mu1": mu1,
        "mu2": mu2,
        "rounds": rounds,
        "reached": reached(seen),
        "diverged": seen.diverged,
        "largest_residual": worst,
        "moved": abs(float(seen.rounds[-1].server[0] - start()[0])) if seen.rounds else 0.0,
        "gradient_norms": seen.gradient_norms,
    }


def measure() -> dict[str, Any]:
    functions = [client(*options) for options in CLIENTS]
    estimate = estimate_constants(functions, around(start(), 4.0, 60))
    stated = penalty_range(CLOSED)
    proofs = {
        "theorem": (stated.mu1_low(), stated.mu2_low),
        "rederived": tuple(least_penalties(CLOSED, "rederived")),
        "mended": tuple(least_penalties(CLOSED)),
        "mended, measured constants": tuple(least_penalties(estimate.measured)),
    }
    found: dict[str, Any] = {
        "constants": {"closed": vars(CLOSED), "bounds": vars(estimate.bounds), "measured": vars(estimate.measured)},
        "start": float(Phi(functions, start())(start()[0]).gradient.norm()),
        "sweep": [],
        "proofs": {},
        "averaged": [],
    }
    for mu in SWEEP:
        found["sweep"].append(at_penalties(functions, mu, mu, 60 + round(16 * mu)))
        print(f"mu {mu:g}: {found['sweep'][-1]['reached'] or found['sweep'][-1]['diverged']}", flush=True)
    for name, (mu1, mu2) in proofs.items():
        found["proofs"][name] = at_penalties(functions, mu1, mu2, SHORT if mu1 > 1e3 else 450)
        print(name, mu1, mu2, found["proofs"][name]["reached"], flush=True)
    for rate in RATES:
        seen = observe(functions, start(), FedAvgGDA(rate, rate, local_steps=STEPS), 300)
        found["averaged"].append({"rate": rate, "gradient_norms": seen.gradient_norms, "diverged": seen.diverged})
        print(f"fedavg_gda {rate:g}: {seen.gradient_norms[-1]:.3g}", flush=True)
    return found


# Drawing --------------------------------------------------------------------------------------------------------------

SHOWN = {
    1.0: ("#F0B27A", (13, 1e4)),
    2.0: ("#D55E00", (26, 1e-3)),
    10.0: ("#A04000", (76, 4e-3)),
    30.0: ("#5E2A00", (82, 0.06)),
}
"""By penalty: the line's colour, and the position of its label."""
MARKS = {
    "mended": ("mended proof", 1e13),
    "rederived": ("lemmas, derived again", 1e13),
    "theorem": ("the theorem", 1e9),
}
ROUNDS = 120


def draw(found: dict[str, Any]) -> None:
    figure = new_figure(4.5)
    left, right = figure.subplots(1, 2)
    left.set_title("Gradient of Phi at the server's point", loc="left", weight="bold")
    right.set_title("Rounds until it stays below 1e-6", loc="left", weight="bold")
    for axes in (left, right):
        quiet(axes)
        axes.set_yscale("log")
    draw_runs(left, found)
    draw_ranges(right, found)
    save(figure, PICTURE)


def draw_runs(axes: Axes, found: dict[str, Any]) -> None:
    runs = [(r["gradient_norms"], *SHOWN[r["mu1"]], f"mu = {r['mu1']:g}") for r in found["sweep"] if r["mu1"] in SHOWN]
    runs.append((found["averaged"][-1]["gradient_norms"], "#0072B2", (62, 3.0), f"FedAvgGDA, eta = {RATES[-1]:g}"))
    for norms, colour, at, name in runs:
        line = [found["start"], *norms][: ROUNDS + 1]
        axes.plot(range(len(line)), line, color=colour, lw=2)
        axes.text(*at, name, fontsize=SMALL, color=colour, va="bottom")
    axes.set_xlim(0, ROUNDS)
    axes.set_ylim(1e-10, 1e5)
    axes.set_xlabel("round", fontsize=SMALL, color=FAINT)


def draw_ranges(axes: Axes, found: dict[str, Any]) -> None:
    axes.set_xscale("log")
    good = [run for run in found["sweep"] if run["reached"]]
    axes.plot([r["mu1"] for r in good], [r["reached"] for r in good], "o-", color="#D55E00", lw=2)
    ends = [good[-1]["mu1"], found["proofs"]["theorem"]["mu1"]]
    axes.plot(ends, [good[-1]["reached"] * mu / ends[0] for mu in ends], "--", color="#D55E00", lw=1.4)
    axes.axvspan(0.05, max(run["mu1"] for run in found["sweep"] if run["diverged"]), color=RULE, lw=0)
    axes.text(0.09, 1e13, "diverges", fontsize=SMALL, color=FAINT, rotation=90, va="top")
    for name, (words, top) in MARKS.items():
        mu1 = found["proofs"][name]["mu1"]
        axes.axvline(mu1, color=FAINT, lw=1)
        axes.text(mu1 / 1.2, top, words, fontsize=SMALL, color=INK, rotation=90, va="top", ha="right")
    axes.set_xlim(0.05, 3e11)
    axes.set_ylim(10, 1e14)
    axes.set_xlabel("mu_1", fontsize=SMALL, color=FAINT, parse_math=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw-only", action="store_true")
    if not parser.parse_args().draw_only:
        began = time.perf_counter()
        found = measure()
        found |= {"seconds": time.perf_counter() - began, "processor": processor(), "torch": torch.__version__}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    draw(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
