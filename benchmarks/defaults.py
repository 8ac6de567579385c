"""Measure the default on data that it was not chosen on: tables, moons, rotated digits, MNIST and USPS.

    FEDMM_DATA=... FEDMM_ADULT=... OMP_NUM_THREADS=1 python benchmarks/defaults.py [run | table] [--rounds 300]

METHODS on the small data sets of benchmarks/tune_data.py with three seeds; options not set in METHODS are at their
defaults. For each run: accuracy on the target's test rows at a third of the rounds, at the end, and at its best
evaluation. A run that diverges or ends more than FELL below its own best has fallen.
Results go to benchmarks/results/defaults.json after each data set; data sets already in the file are skipped.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import measured_on, run_or_table, typed_command
from tune_data import SMALL, tables_of

from fedmm.config.schema import experiment
from fedmm.runs.build import DataCache, prepare
from fedmm.training.batched import StackRun, StackSettings

RESULTS = Path(__file__).parent / "results" / "defaults.json"
SEEDS = (20, 21, 22)
FELL = 0.10
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "source only": ({"name": "source_only"}, {"name": "fedavg_gda"}),
    "fedmm_smoothed": ({"name": "dann"}, {"name": "fedmm_smoothed"}),
    "fedmm, penalties 2, restrained": (
        {"name": "dann", "restrained": True},
        {"name": "fedmm", "penalty_min": 2.0, "penalty_max": 2.0},
    ),
}


def measure(name: str, method: str, rounds: int) -> dict[str, list[float]]:
    """Return the early, last and best accuracies of the runs, one per seed."""
    objective, algorithm = METHODS[method]
    with tempfile.TemporaryDirectory() as folder:
        tables = tables_of(name, Path(folder), rounds)
        given = {**tables, "objective": objective, "algorithm": algorithm}
        listed = [experiment({**given, "run": {**tables["run"], "seed": seed, "best_by": ""}}) for seed in SEEDS]
        cache = DataCache()
        stack = StackRun([prepare(each, cache) for each in listed], "fp32", StackSettings())
        stack.run(rounds, rounds // 6)
    runs = [stack.training(number, "completed") for number in range(len(SEEDS))]
    seen = [[value for row in run.history if (value := row.get("target_accuracy")) is not None] for run in runs]
    diverged = [run.status != "completed" for run in runs]
    return {
        "early": [own[min(1, len(own) - 1)] if own else 0.0 for own in seen],
        "last": [0.0 if over or not own else own[-1] for own, over in zip(seen, diverged, strict=True)],
        "best": [max(own, default=0.0) for own in seen],
    }


def table(data: dict[str, Any]) -> str:
    """Return a Markdown table of last-round accuracies (mean and range) and how many runs fell."""
    lines = [f"| data | {' | '.join(METHODS)} |", "|---" * (1 + len(METHODS)) + "|"]
    for name, own in data.items():
        lines.append(f"| {name} | {' | '.join(_cell(own[method]) for method in METHODS)} |")
    means = [fmean(100 * fmean(own[method]["last"]) for own in data.values()) for method in METHODS]
    return "\n".join([*lines, f"| **mean** | {' | '.join(f'{mean:.1f}' for mean in means)} |"])


def _cell(found: dict[str, list[float]]) -> str:
    last = [100 * value for value in found["last"]]
    fell = sum(end < best - FELL for end, best in zip(found["last"], found["best"], strict=True))
    return f"{fmean(last):.1f} ({min(last):.1f} to {max(last):.1f})" + (f", {fell} fell" if fell else "")


def main() -> None:
    parser = run_or_table(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"data": {}}
    if given.action == "run":
        kept = {"measured": measured_on(typed_command(), os.getloadavg()[0]), "rounds": given.rounds, **kept}
        for name in SMALL:
            if name not in kept["data"]:
                kept["data"][name] = {method: measure(name, method, given.rounds) for method in METHODS}
                given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
                sys.stderr.write(f"{name}: {', '.join(_cell(own) for own in kept['data'][name].values())}\n")
    print(table(kept["data"]))


if __name__ == "__main__":
    main()
