"""Test whether restraint saves runs whose features outrun the adversary: rotated digits, one source, two targets.

    python benchmarks/restrained.py [--rounds 800] [--seeds 10,11,12] [--quick]

Learning rate 0.02, 20 local steps, DANN. For each run: accuracy on the target's test digits at the end and at the best
evaluation, the highest domain loss of any round (guessing gives 0.64, since two thirds of the clients are targets), and
how it ended: it "fell" if it ended more than 10 points below its best, and "died" if it diverged or its duals ended
with a norm below 1, which means that only the adversary's last biases still had a gradient.
Results go to benchmarks/results/restrained.json, and as a table to the terminal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import processor, typed_command

from fedmm.config.schema import Experiment, experiment
from fedmm.runs.build import DataCache, prepare
from fedmm.training.batched import StackRun, StackSettings

RESULTS = Path(__file__).parent / "results" / "restrained.json"
RATES = {"lr_min": 0.02, "lr_max": 0.02, "local_steps": 20}
ALGORITHMS: dict[str, dict[str, float]] = {"fedmm": {"penalty_min": 0.5, "penalty_max": 0.5}, "fedmm_ascent": {}}
FELL, DEAD_DUAL = 0.10, 1.0


def candidate(algorithm: str, restrained: bool, seed: int, rounds: int) -> Experiment:
    return experiment(
        {
            "run": {"rounds": rounds, "seed": seed, "evaluate_every": 50, "probe_rows": 0, "threads": 1},
            "data": {"name": "digits"},
            "partition": {"name": "source_target", "source_clients": 1, "target_clients": 2},
            "model": {"name": "mlp", "hidden": [128, 64], "adversary_hidden": [64]},
            "objective": {"name": "dann", "restrained": restrained},
            "algorithm": {"name": algorithm, **RATES, **ALGORITHMS[algorithm]},
        }
    )


def outcome(each: Experiment, stack: StackRun, replica: int) -> dict[str, Any]:
    """Return how one run ended."""
    training = stack.training(replica, "completed")
    rows: list[dict[str, Any]] = [dict(row) for row in training.history]
    seen = [value for row in rows if (value := row.get("target_accuracy")) is not None]
    dead = training.status == "completed" and rows[-1]["dual_norm"] < DEAD_DUAL
    return {
        "algorithm": each.algorithm.name,
        "restrained": each.objective.restrained,
        "seed": each.run.seed,
        "ended": "died" if dead else training.status,
        "last": seen[-1],
        "best": max(seen),
        "highest_domain_loss": max(row["domain_loss"] for row in rows),
    }


def table(runs: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a line per algorithm, with and without restraint."""
    heads = ["algorithm", "restrained", "accuracy at the end", "at its best", "highest domain loss", "fell", "died"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for algorithm in ALGORITHMS:
        for restrained in (False, True):
            own = [run for run in runs if (run["algorithm"], run["restrained"]) == (algorithm, restrained)]
            last, best = ([100 * run[name] for run in own] for name in ("last", "best"))
            fell = sum(run["last"] < run["best"] - FELL for run in own)
            died = sum(run["ended"] != "completed" for run in own)
            cells = [f"`{algorithm}`", "yes" if restrained else "no"]
            cells += [f"{fmean(last):.1f} ({', '.join(f'{value:.1f}' for value in last)})", f"{fmean(best):.1f}"]
            cells += [", ".join(f"{run['highest_domain_loss']:.1f}" for run in own), str(fell), str(died)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=800)
    arguments.add_argument("--seeds", default="10,11,12")
    arguments.add_argument("--quick", action="store_true", help="a few rounds, nothing written")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    began, cache, runs = time.perf_counter(), DataCache(), []
    rounds = 2 if options.quick else options.rounds
    for restrained in (False, True):
        listed = [
            candidate(name, restrained, int(seed), rounds) for name in ALGORITHMS for seed in options.seeds.split(",")
        ]
        stack = StackRun([prepare(each, cache) for each in listed], "fp32", StackSettings(looped=True))
        while stack.engine.round < rounds:
            stack.run(min(rounds, stack.engine.round + 50), 50)
            sys.stderr.write(f"\rround {stack.engine.round} of {rounds}")
        sys.stderr.write("\n")
        runs += [outcome(each, stack, replica) for replica, each in enumerate(listed)]
    sys.stdout.write(table(runs) + "\n")
    if not options.quick:
        result = {
            "command": typed_command(),
            "hardware": processor(),
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - began, 1),
            "rounds": rounds,
            "runs": runs,
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
