"""Choose FedMM's penalty, smoothing and learning-rate schedule on MNIST-M from signals that need no target labels.

    FEDMM_DATA=... python benchmarks/choose_mnist_m.py [--objective dann|cdan|mdd] [--seeds N] [--device cuda]
        [--precision tf32] [--rounds N] [--out FILE] [--quick]

Figure 5's panel with one source and one target client, with seeds 10, 11, ..., which no figure uses. Each candidate is
judged by two signals, averaged over the seeds and over the last JUDGED evaluations: information maximisation on the
target site's training inputs (higher is better) and the risk on held-out source digits. The choice has the highest
information among the candidates whose runs all stayed finite and whose risk is at most RISK times the lowest.
Accuracies are not read. All runs train as one stack. Results go to benchmarks/results/choose_mnist_m_OBJECTIVE.json,
updated every REPORTED evaluations.
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
from fedmm.config.toml import read_tables
from fedmm.runs.build import DataCache, prepare
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.stack_settings import choose_settings

HERE = Path(__file__).parent
RISK = 2.0
FIRST_SEED = 10
JUDGED = 5
REPORTED = 5
SIGNALS = ("target_information", "source_risk")
PENALTIES: dict[str, dict[str, tuple[float, ...]]] = {
    "dann": {"fedmm": (1.5, 2.0), "fedmm_smoothed": (0.5, 0.75, 1.0)},
    "cdan": {"fedmm": (1.5, 2.0), "fedmm_smoothed": (0.5, 0.75, 1.0)},
    "mdd": {"fedmm": (0.75, 1.0), "fedmm_smoothed": (0.5, 0.75)},
}
SCHEDULES = ("constant", "cosine_decay")


def candidates(objective: str) -> dict[str, dict[str, Any]]:
    """Return the ``[algorithm]`` table of each candidate."""
    base = read_tables(HERE.parent / "paper" / "figure_5" / f"{objective}_1s1t" / "fedmm.toml")["algorithm"]
    return {
        f"{name} mu {penalty:g} {schedule}": {
            **base,
            "name": name,
            "penalty_min": penalty,
            "penalty_max": penalty,
            "lr_schedule": {"name": schedule},
        }
        for name, penalties in PENALTIES[objective].items()
        for penalty in penalties
        for schedule in SCHEDULES
    }


def experiments(objective: str, seeds: int, run: dict[str, Any]) -> list[tuple[str, Experiment]]:
    tables = read_tables(HERE.parent / "paper" / "figure_5" / f"{objective}_1s1t" / "fedmm.toml")
    tables.pop("sweep", None)
    return [
        (
            label,
            experiment({**tables, "algorithm": algorithm, "run": {**tables["run"], **run, "seed": FIRST_SEED + seed}}),
        )
        for label, algorithm in candidates(objective).items()
        for seed in range(seeds)
    ]


def judgement(stack: StackRun, listed: list[tuple[str, Experiment]]) -> dict[str, Any]:
    """Return every candidate's signals, averaged over its last evaluations so far, and the resulting choice."""
    found: dict[str, list[dict[str, Any]]] = {}
    for replica, (label, each) in enumerate(listed):
        training = stack.training(replica, "completed")
        seen = [row for row in training.history if row.get("target_information") is not None][-JUDGED:]
        found.setdefault(label, []).append(
            {
                "seed": each.run.seed,
                "status": training.status,
                "rounds": len(training.history),
                **{name: fmean(row[name] or 0.0 for row in seen) if seen else None for name in SIGNALS},
            }
        )
    rows: list[dict[str, Any]] = [
        {
            "candidate": label,
            **{name: fmean(run[name] or 0.0 for run in runs) for name in SIGNALS},
            "finite": all(run["status"] == "completed" for run in runs),
            "runs": runs,
        }
        for label, runs in found.items()
    ]
    finite = [row for row in rows if row["finite"]]
    allowed = RISK * min((row["source_risk"] for row in finite), default=0.0)
    chosen = max(
        (row for row in finite if row["source_risk"] <= allowed),
        key=lambda row: row["target_information"],
        default=None,
    )
    return {"chosen": chosen and chosen["candidate"], "candidates": rows}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--objective", choices=("dann", "cdan", "mdd"), default="dann")
    arguments.add_argument("--seeds", type=int, default=2)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--precision", default="fp32")
    arguments.add_argument("--rounds", type=int, default=0)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--quick", action="store_true", help="a few rounds on a few rows, nothing written")
    options = arguments.parse_args()
    run: dict[str, Any] = {"device": options.device, "precision": options.precision}
    if options.quick or options.rounds:
        run |= {"rounds": options.rounds or 2}
    listed = experiments(options.objective, options.seeds, run)
    if options.quick:
        listed = listed[:: 4 * options.seeds]
    began, cache = time.perf_counter(), DataCache()
    adaptations = [prepare(each, cache) for _, each in listed]
    on_cpu = options.device == "cpu"
    settings = StackSettings(looped=True) if on_cpu else choose_settings(adaptations, options.precision).settings
    stack = StackRun(adaptations, options.precision, settings)
    rounds, every = listed[0][1].run.rounds, listed[0][1].run.evaluate_every
    out = options.out or HERE / "results" / f"choose_mnist_m_{options.objective}.json"
    while stack.engine.round < rounds:
        stack.run(min(rounds, stack.engine.round + every), every)
        sys.stderr.write(f"\rround {stack.engine.round} of {rounds}")
        if not options.quick and (stack.engine.round % (REPORTED * every) == 0 or stack.engine.round == rounds):
            result = {
                "command": typed_command(),
                "hardware": processor() if on_cpu else torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "seconds": round(time.perf_counter() - began, 1),
                "rounds": stack.engine.round,
                "allowed_risk": RISK,
                **judgement(stack, listed),
            }
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write("\n")
    found = judgement(stack, listed)
    for row in found["candidates"]:
        ending = "" if row["finite"] else ", not finite"
        sys.stdout.write(
            f"{row['candidate']:40s} information {row['target_information']:.3f}, source risk "
            f"{row['source_risk']:.3f}{ending}\n"
        )
    sys.stdout.write(f"chosen: {found['chosen']}\n")


if __name__ == "__main__":
    main()
