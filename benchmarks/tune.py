"""How good the settings are that ``fedmm tune`` chooses without target labels.

    python benchmarks/tune.py

Turned digits and two moons, one source and one target client: the default grid, three seeds, 150 rounds of 5 steps.
The tuning is done first, and sees no label of the target. Then every candidate runs full length with the same seeds,
and the labels of target test rows say how good the choice, the experiment as given, source only and the best candidate
are.

Written to benchmarks/results/tune.json and printed as a table.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from common import measured_on, typed_command

from fedmm.config.schema import experiment
from fedmm.runs.sweep import DivergedRuns, run_sweep
from fedmm.runs.tune import tune
from fedmm.runs.tune_candidates import AS_GIVEN, derive_candidates

RESULTS = Path(__file__).parent / "results" / "tune.json"
RATES = {"lr_min": 0.02, "lr_max": 0.02, "local_steps": 5}
DATA: dict[str, dict[str, Any]] = {
    "moons": {
        "run": {"batch_size": 32},
        "data": {"name": "moons", "angle": 35.0, "validation_rows": 200},
        "model": {"name": "mlp", "hidden": [32, 32], "adversary_hidden": [32]},
        "algorithm": RATES,
    },
    "digits": {
        "run": {"batch_size": 32},
        "data": {"name": "digits", "kind": "turned", "angle": 30.0, "validation_rows": 200},
        "model": {"name": "mlp", "hidden": [64], "adversary_hidden": [32]},
        "algorithm": RATES,
    },
}


def measure(name: str, rounds: int, seeds: int) -> dict[str, Any]:
    """Tune on one data set, then let labels say how good every candidate is."""
    tables = {**DATA[name], "run": {**DATA[name]["run"], "rounds": rounds, "evaluate_every": 5}}
    with tempfile.TemporaryDirectory() as folder:
        tuning = tune(tables, seeds=seeds, out=Path(folder) / "tune", say=print)
        accuracies = label_all(tables, seeds, Path(folder) / "all")
    adapted = next((row["candidate"] for row in tuning.table if _is(tables, row, tuning.adapted)), None)
    oracle = max(accuracies, key=lambda label: fmean(accuracies[label]))
    chosen = {
        "choice": tuning.label,
        "best that adapts": adapted,
        "as given": AS_GIVEN,
        "source only": "source only",
        "oracle": oracle,
    }
    return {
        "data": name,
        "rounds": rounds,
        "seeds": seeds,
        "candidates": len(accuracies),
        "sentence": tuning.sentence,
        "chosen": chosen,
        "target_accuracy": {what: accuracies[label] for what, label in chosen.items() if label},
        "all": accuracies,
        "table": tuning.table,
    }


def _is(tables: dict[str, Any], row: dict[str, Any], chosen: object) -> bool:
    return derive_candidates(tables)[row["candidate"]] == chosen


def label_all(tables: dict[str, Any], seeds: int, folder: Path) -> dict[str, list[float]]:
    """The target accuracy of every candidate after its last round, one a seed; 0 for a run that diverged."""
    first = experiment(tables).run.seed
    runs = [
        replace(each, run=replace(each.run, label=label, seed=first + seed, keep_rows=False))
        for label, each in derive_candidates(tables).items()
        for seed in range(seeds)
    ]
    try:
        summary = run_sweep(runs, folder, title="all", progress=False, say=print)
    except DivergedRuns as diverged:
        summary = diverged.summary
    found: dict[str, list[float]] = {}
    for run in summary["runs"]:
        found.setdefault(run["label"], []).append(run["target_accuracy"] if run["status"] == "completed" else 0.0)
    return found


def show(result: dict[str, Any]) -> str:
    """A row of the table in docs/choosing.md."""
    cells = [
        f"{100 * fmean(values):.1f} ({100 * min(values):.1f} to {100 * max(values):.1f})"
        for values in (result["target_accuracy"].get(what, []) for what in result["chosen"])
        if values
    ]
    return f"| {result['data']} | {result['chosen']} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=[*DATA], nargs="*", default=[*DATA])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    about = measured_on(typed_command(), os.getloadavg()[0])
    results = []
    for name in options.data:
        results.append(measure(name, options.rounds, options.seeds))
        print(show(results[-1]), flush=True)
        print(results[-1]["sentence"], flush=True)
        options.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
