"""Measure how good the settings are that ``fedmm tune`` chooses without target labels.

    FEDMM_DATA=... FEDMM_ADULT=... FEDMM_COMPAS=... FEDMM_GERMAN=... FEDMM_CACHE=... OMP_NUM_THREADS=1
        python benchmarks/tune.py train
        [--data NAME ...] [--rounds N] [--seeds 3] [--first-seed 30] [--device cuda] [--precision tf32] [--out FOLDER]
    python benchmarks/tune.py choose [--out FOLDER]

The data sets of benchmarks/tune_data.py: those on which the rule was developed, those held out, and those that confirm
the rule after it was changed.
``train`` runs every candidate of the grid once per seed at full length, and saves for each data set the signals of all
runs, their predictions on the clients' target rows, and their accuracy on target test rows. ``choose`` reads the rungs
of a tuning from these runs: the first 50 rounds of a run are a run of 50, since no schedule here depends on the number
of rounds. The code of ``fedmm tune`` makes the choice and sees no target labels. The accuracies then show how good the
choice, the experiment as given, source only and the best candidate are.

``choose`` writes benchmarks/results/tune.json and prints the table of docs/choosing.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
from tune_data import DATA, GROUPS, tables_of

from fedmm.config.schema import SOURCE_ONLY
from fedmm.config.sweep_grid import groups
from fedmm.core.signals.validators import VALIDATORS
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.evidence import shift_of_model, shift_table
from fedmm.runs.tuning.agreement import agreement_of, target_rows
from fedmm.runs.tuning.candidates import ALWAYS, AS_GIVEN, derive_candidates
from fedmm.runs.tuning.halving import Rung, count_halvings, plan_rungs
from fedmm.runs.tuning.ranking import RANKED_BY, Measured, find_vetoes, rank_candidates
from fedmm.runs.tuning.rung_results import Choice, Results, choose_finalist
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.stack_settings import choose_settings

RESULTS = Path(__file__).parent / "results" / "tune.json"
RUNS = Path("runs") / "tune-benchmark"
EVALUATIONS, ETA = 15, 2
WHAT = ("choice", "as given", "source only", "oracle")
SIGNALS = tuple(name for name, validator in VALIDATORS.items() if not validator.oracle)


@dataclass
class Trained:
    """A run: its signals by evaluated round, its predictions on the clients' target rows, and its accuracy."""

    rounds: dict[int, dict[str, float]]
    predicted: list[Tensor]
    accuracy: float
    diverged: bool

    def measured(self, after: int) -> Measured:
        """Return what a rung of ``after`` rounds would have measured."""
        if self.diverged:
            return Measured(diverged=True)
        past = {number: row for number, row in self.rounds.items() if number <= after}
        signals = {name: past[max(past)][name] for name in RANKED_BY if name in past[max(past)]}
        return Measured(signals, max(row[RANKED_BY[0]] for row in past.values()))


Runs = dict[str, list[Trained]]


def train(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train all runs; return them by candidate, with target rows' nearest neighbours and source only's label shift."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tables = tables_of(name, Path(folder), options.rounds)
        rounds = tables["run"]["rounds"]
        every = max(1, rounds // EVALUATIONS)
        tables["run"] |= {"evaluate_every": every, "device": options.device, "precision": options.precision}
        candidates = derive_candidates(tables)
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        given = [
            replace(candidate, run=replace(candidate.run, label=label, seed=seed, best_by=""))
            for label, candidate in candidates.items()
            for seed in seeds
        ]
        cache = DataCache()
        prepared = [prepare(experiment, cache) for experiment in given]
        own = candidates[AS_GIVEN]
        pair = cache.pair(own, torch.device("cpu"))
        rows, neighbours = target_rows(own, cache)
    runs: dict[str, dict[int, Trained]] = {label: {} for label in candidates}
    shifts = []
    for group in groups(given, prepared):
        members = [prepared[number] for number in group.members]
        settings = StackSettings() if options.device == "cpu" else choose_settings(members, options.precision).settings
        stack = StackRun(members, options.precision, settings)
        status = stack.run(rounds, every)
        for replica, number in enumerate(group.members):
            adapted, diverged = stack.adapted(replica, status)
            label, seed = given[number].run.label, given[number].run.seed
            runs[label][seed] = Trained(
                {
                    int(row["round"] or 0): {name: value for name in SIGNALS if (value := row.get(name)) is not None}
                    for row in adapted.history
                    if row.get(RANKED_BY[0]) is not None
                },
                [adapted.predict_proba(x).argmax(dim=-1).to("cpu", torch.uint8) for x in rows],
                0.0 if diverged else adapted.history.last("target_accuracy") or 0.0,
                diverged is not None,
            )
            if label == SOURCE_ONLY and (shift := shift_of_model(adapted.predict_proba, pair)) is not None:
                shifts.append(shift_table(shift, pair.class_names))
        del stack
    return {
        "about": measured_on(typed_command(), os.getloadavg()[0]) | {"seconds": round(time.perf_counter() - began, 1)},
        "rounds": rounds,
        "seeds": list(seeds),
        "classes": pair.classes,
        "neighbours": neighbours,
        "shift": max(shifts, key=lambda shift: float(shift["high"]), default=None),
        "runs": {label: [vars(by_seed[seed]) for seed in seeds] for label, by_seed in runs.items()},
    }


def report(name: str, trained: dict[str, Any]) -> dict[str, Any]:
    """Return what the rule chooses on one data set, and the accuracies of the choice and the alternatives."""
    runs: Runs = {label: [Trained(**run) for run in own] for label, own in trained["runs"].items()}
    choice, finalists = choose(runs, trained)
    accuracies = {label: [run.accuracy for run in own] for label, own in runs.items()}
    oracle = max(accuracies, key=lambda label: fmean(accuracies[label]))
    shift = trained["shift"]
    chosen = {
        "choice": choice.label,
        "best that adapts": choice.adapted,
        "as given": AS_GIVEN,
        "source only": SOURCE_ONLY,
        "oracle": oracle,
    }
    return {
        **trained["about"],
        "group": next(group for group, names in GROUPS.items() if name in names),
        "rounds": trained["rounds"],
        "seeds": trained["seeds"],
        "candidates": len(accuracies),
        "sentence": choice.sentence,
        "label_shift": None if shift is None else {key: shift[key] for key in ("distance", "low", "high", "reliable")},
        "chosen": chosen,
        "target_accuracy": {what: accuracies[label] for what, label in chosen.items() if label},
        "finalists": finalists,
        "all": {label: [round(value, 4) for value in values] for label, values in accuracies.items()},
    }


def choose(runs: Runs, trained: dict[str, Any]) -> tuple[Choice, dict[str, Any]]:
    """Return what ``fedmm tune`` would choose from these runs, and the finalists' signals."""
    rounds, free, seeds = trained["rounds"], len(runs) - len(ALWAYS), len(trained["seeds"])
    kept = [label for label in runs if label not in ALWAYS]
    results, vetoes = None, {}
    for rung in plan_rungs(free, rounds, count_halvings(free, rounds, ETA), ETA, seeds):
        results = judge(rung, [*ALWAYS, *kept[: rung.candidates]], runs, trained)
        vetoes = find_vetoes(results.measured, SOURCE_ONLY, trained["classes"])
        kept = [label for label in rank_candidates(results.measured, vetoes) if label not in ALWAYS]
    assert results is not None
    finalists = {
        label: {
            "signals": {name: round(fmean(run.signals.get(name, 0.0) for run in own), 3) for name in RANKED_BY},
            "agreement": {name: round(value, 3) for name, value in results.agreement[label].items()},
            "veto": vetoes.get(label, ""),
        }
        for label, own in results.measured.items()
    }
    return choose_finalist(results, vetoes), finalists


def judge(rung: Rung, labels: Sequence[str], runs: Runs, trained: dict[str, Any]) -> Results:
    """Return what a rung with these candidates measures."""
    own = {label: runs[label][: rung.seeds] for label in labels}
    agreement = {
        label: agreement_of(
            [[y.long() for y in run.predicted] for run in tried], trained["neighbours"], trained["classes"]
        )
        for label, tried in own.items()
    }
    measured = {label: [run.measured(rung.rounds) for run in tried] for label, tried in own.items()}
    return Results(measured, rung.rounds, trained["shift"], agreement)


def table(results: dict[str, Any]) -> str:
    """Return the table of docs/choosing.md."""
    heads = ["data", "the choice", "as given", "source only", "best by labels", "choice less best", "chosen"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for group in dict.fromkeys(own["group"] for own in results.values()):
        known = {name: own for name, own in results.items() if own["group"] == group}
        for name, own in known.items():
            cells = [spread(own["target_accuracy"][what]) for what in WHAT]
            lines.append(f"| {name} | {' | '.join(cells)} | {gap(own, 'choice'):+.1f} | {own['chosen']['choice']} |")
        lines.append(mean_row(group, known))
    return "\n".join([*lines, mean_row("all", results)])


def mean_row(group: str, results: dict[str, Any]) -> str:
    gaps = [f"{fmean(gap(own, what) for own in results.values()):+.1f}" for what in WHAT]
    return f"| **{group}, mean less best** | {gaps[0]} | {gaps[1]} | {gaps[2]} | | {gaps[0]} | |"


def gap(own: dict[str, Any], what: str) -> float:
    """Return the accuracy of ``what`` minus that of the best candidate by labels, in points."""
    accuracies = own["target_accuracy"]
    return 100 * (fmean(accuracies[what]) - fmean(accuracies["oracle"]))


def spread(values: list[float]) -> str:
    """Return mean and range, in per cent."""
    return f"{100 * fmean(values):.1f} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def file_of(name: str, folder: Path) -> Path:
    return folder / f"{re.sub('[^a-z0-9]+', '_', name.lower()).strip('_')}.pt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("train", "choose"))
    parser.add_argument("--data", choices=list(DATA), nargs="*", default=list(DATA))
    parser.add_argument("--rounds", type=int, help="150 where a data set does not say otherwise")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--out", type=Path, default=RUNS, help="the folder of the runs")
    options = parser.parse_args()
    if options.mode == "choose":
        there = {name: file for name in options.data if (file := file_of(name, options.out)).exists()}
        results = {name: report(name, torch.load(file, weights_only=False)) for name, file in there.items()}
        RESULTS.write_text(json.dumps({"data": results}, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{table(results)}\n")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for name in [name for name in options.data if not file_of(name, options.out).exists()]:
        trained = train(name, options)
        torch.save(trained, file_of(name, options.out))
        sys.stderr.write(f"{name}: {trained['about']['seconds']} s\n")


if __name__ == "__main__":
    main()
