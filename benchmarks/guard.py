"""Measure what the guard saves: DANN by plain FedMM with diverging penalties, with the guard off and with ``rollback``.

    python benchmarks/guard.py [--case digits] [--device cpu] [--rounds N] [--out FILE] [--quick]

digits: the rotated digits with the demo's settings (learning rate 0.02, penalty 0.5) but more rounds.
mnist_m: the paper's network and data with penalty 1, which gave NaN near round 1,500; on a GPU, with FEDMM_DATA.
All runs train as one stack. Results go to benchmarks/results/guard_<case>.json, and as a table to the terminal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import processor, typed_command

from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import read_tables
from fedmm.runs.build import DataCache, prepare
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.stack_settings import choose_settings

HERE = Path(__file__).parent
POLICIES = ("off", "rollback")
SEEDS = (0, 1, 2)
ROUNDS = {"digits": 700, "mnist_m": 3000}


def tables(case: str) -> dict[str, Any]:
    if case == "mnist_m":
        found = read_tables(HERE.parent / "paper" / "figure_5" / "dann_1s1t" / "fedmm.toml")
        found["algorithm"] |= {"penalty_min": 1.0, "penalty_max": 1.0}
        return {section: table for section, table in found.items() if section != "sweep"}
    return {
        "run": {"evaluate_every": 20, "probe_rows": 0, "threads": 1},
        "data": {"name": "digits"},
        "model": {"name": "mlp", "hidden": [128, 64], "adversary_hidden": [64]},
        "objective": {"name": "dann"},
        "algorithm": {
            "name": "fedmm", "lr_min": 0.02, "lr_max": 0.02, "penalty_min": 0.5, "penalty_max": 0.5, "local_steps": 20
        },
    }  # fmt: skip


def candidates(case: str, device: str, precision: str, rounds: int) -> list[Experiment]:
    base = tables(case)
    return [
        experiment(
            {
                **base,
                "run": {**base["run"], "rounds": rounds, "seed": seed, "device": device, "precision": precision},
                "guard": {"policy": policy},
            }
        )
        for policy in POLICIES
        for seed in SEEDS
    ]


def outcome(each: Experiment, stack: StackRun, replica: int) -> dict[str, Any]:
    """Return how a run ended; it ends early if it is no longer finite."""
    adapted, error = stack.adapted(replica, "completed")
    seen = [(row["round"], row["target_accuracy"]) for row in adapted.history if row["target_accuracy"] is not None]
    return {
        "policy": each.guard.policy,
        "seed": each.run.seed,
        "status": adapted.status,
        "ended_by": str(error) if error else None,
        "rounds": len(adapted.history),
        "target_accuracy": seen[-1][1] if seen else None,
        "oracle_target_accuracy": max(accuracy for _, accuracy in seen) if seen else None,
        "events": adapted.history.events,
        "curve": seen,
    }


def table(outcomes: list[dict[str, Any]]) -> str:
    lines = ["| guard | seed | rounds | target accuracy | best round (oracle) | rolled back |", "|---" * 6 + "|"]
    for each in outcomes:
        went = ", ".join(f"{event['round']} to {event['to_round']}" for event in each["events"]) or "-"
        last, best = (f"{each[name]:.1%}" for name in ("target_accuracy", "oracle_target_accuracy"))
        lines.append(f"| `{each['policy']}` | {each['seed']} | {each['rounds']} | {last} | {best} | {went} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--case", choices=tuple(ROUNDS), default="digits")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--precision", default="fp32")
    arguments.add_argument("--rounds", type=int, default=0)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--quick", action="store_true", help="a few rounds, nothing written")
    options = arguments.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    rounds = 3 if options.quick else options.rounds or ROUNDS[options.case]
    began = time.perf_counter()
    cache = DataCache()
    chosen = candidates(options.case, options.device, options.precision, rounds)
    adaptations = [prepare(each, cache) for each in chosen]
    on_cpu = options.device == "cpu"
    settings = StackSettings(looped=True) if on_cpu else choose_settings(adaptations, options.precision).settings
    stack = StackRun(adaptations, options.precision, settings)
    every = chosen[0].run.evaluate_every
    while stack.engine.round < rounds:
        stack.run(min(rounds, stack.engine.round + every), every)
        sys.stderr.write(f"\rround {stack.engine.round} of {rounds}")
    sys.stderr.write("\n")
    outcomes = [outcome(each, stack, replica) for replica, each in enumerate(chosen)]
    sys.stdout.write(table(outcomes))
    if not options.quick:
        result = {
            "command": typed_command(),
            "algorithm": chosen[0].tables()["algorithm"],
            "guard": chosen[-1].tables()["guard"],
            "hardware": processor() if on_cpu else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - began, 1),
            "runs": outcomes,
        }
        out = options.out or HERE / "results" / f"guard_{options.case}.json"
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
