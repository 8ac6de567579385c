"""Choose the defaults of the smoothed FedMM on the rotated digits, from signals that need no target labels.

    python benchmarks/choose_smoothing.py [--rounds 1500] [--device cuda] [--out FILE] [--quick]

Two settings in which plain FedMM collapses within 1,500 rounds (learning rate 0.02 or 0.05, penalty 0.5), three seeds.
For each pull r and centre rate b: information maximisation on the target site's training inputs (higher is better), at
the end and at its lowest in the second half, and the risk on held-out source digits. A run counts as collapsed if it
diverged or if that risk ends above 1. The choice has the highest information, averaged over all runs of both settings,
among the candidates without a collapse. Accuracies are not read.
Results go to benchmarks/results/choose_smoothing.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import processor, typed_command

from fedmm.config.schema import Experiment, experiment
from fedmm.core.errors import FedmmError
from fedmm.runs.sweep import run_sweep

RESULTS = Path(__file__).parent / "results" / "choose_smoothing.json"
SETTINGS = ((0.02, 0.5), (0.05, 0.5))
CANDIDATES = ((0.0, 0.0), *((r, b) for r in (0.25, 0.5, 1.0) for b in (0.1, 0.2, 0.5)))
SEEDS = (0, 1, 2)
COLLAPSED_RISK = 1.0


def candidate(lr: float, penalty: float, pull: float, rate: float, seed: int, rounds: int, device: str) -> Experiment:
    rates = {"lr_min": lr, "lr_max": lr, "penalty_min": penalty, "penalty_max": penalty, "local_steps": 20}
    plain = {"name": "fedmm", **rates}
    smoothed = {"name": "fedmm_smoothed", **rates, "smoothing_max": pull, "centre_rate": rate}
    return experiment(
        {
            "run": {
                "rounds": rounds,
                "device": device,
                "seed": seed,
                "evaluate_every": max(1, rounds // 60),
                "label": f"lr={lr} mu={penalty} r={pull} b={rate}",
            },
            "data": {"name": "digits", "validation_rows": 200},
            "model": {"name": "mlp", "hidden": [128, 64], "adversary_hidden": [64]},
            "objective": {"name": "dann"},
            "algorithm": smoothed if pull else plain,
        }
    )


def signals(folder: Path) -> dict[str, Any]:
    """Return the signals from a run's files, without its accuracies."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = [row for row in rows if row.get("target_information") is not None]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    late = measured[len(measured) // 2 :]
    risk = measured[-1]["source_risk"]
    return {
        "target_information": measured[-1]["target_information"],
        "lowest_late_information": min(row["target_information"] for row in late),
        "source_risk": risk,
        "collapsed": summary["status"] != "completed" or risk is None or risk > COLLAPSED_RISK,
    }


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=1500)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--out", type=Path, default=RESULTS)
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    candidates = CANDIDATES[:2] if options.quick else CANDIDATES
    found: dict[tuple[float, float], list[dict[str, Any]]] = {each: [] for each in candidates}
    for lr, penalty in SETTINGS:
        runs = [
            (each, candidate(lr, penalty, *each, seed, options.rounds, options.device))
            for each in candidates
            for seed in SEEDS
        ]
        with tempfile.TemporaryDirectory() as folder:
            try:
                run_sweep([run for _, run in runs], Path(folder) / "sweep", title="smoothing")
            except FedmmError as problem:  # a run that diverged is a result here
                sys.stderr.write(f"{problem}\n")
            listed = json.loads((Path(folder) / "sweep" / "summary.json").read_text(encoding="utf-8"))["runs"]
            for entry, (each, run) in zip(listed, runs, strict=True):
                seen = signals(Path(folder) / "sweep" / entry["folder"])
                found[each].append({"lr": lr, "penalty": penalty, "seed": run.run.seed, **seen})
    rows = [
        {
            "smoothing_max": pull,
            "centre_rate": rate,
            "target_information": fmean(run["target_information"] for run in runs),
            "lowest_late_information": min(run["lowest_late_information"] for run in runs),
            "source_risk": fmean(min(run["source_risk"], 1e3) for run in runs),
            "collapsed": sum(run["collapsed"] for run in runs),
            "runs": runs,
        }
        for (pull, rate), runs in found.items()
    ]
    steady = [row for row in rows if not row["collapsed"]]
    chosen = max(steady, key=lambda row: row["target_information"]) if steady else None
    result = {
        "command": typed_command(),
        "rounds": options.rounds,
        "seeds": list(SEEDS),
        "hardware": torch.cuda.get_device_name() if options.device == "cuda" else processor(),
        "torch": torch.__version__,
        "chosen": chosen and {key: chosen[key] for key in ("smoothing_max", "centre_rate")},
        "candidates": rows,
    }
    for row in rows:
        sys.stdout.write(json.dumps({key: value for key, value in row.items() if key != "runs"}) + "\n")
    sys.stdout.write(f"chosen: {result['chosen']}\n")
    if not options.quick:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
