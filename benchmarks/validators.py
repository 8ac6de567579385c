"""Measure how well each validator predicts the target accuracy, which it never sees.

    python benchmarks/validators.py [--data digits] [--device cpu] [--quick]
    FEDMM_DATA=... python benchmarks/validators.py --data mnist_m --device cuda [--rounds 2000]

FedMM (DANN, a source and a target client) with several learning rates, penalties, trade-offs nu and seeds, in as few
stacks as possible. For each validator, with correlations signed so that +1 is best:

- within: Spearman's rank correlation with target accuracy over the evaluations of one run, averaged over runs;
- across: the same over the last models of all settings, averaged over seeds;
- the target accuracy of what it selects: a round of each run (averaged over runs), a setting by its last model, and
  both at once (averaged over seeds), compared with the last round, the mean over settings, and the oracle.

Results go to benchmarks/results/validators.json, one entry per data set, and are printed as a table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from common import measured_on, typed_command
from scipy.stats import spearmanr

from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import grid, groups
from fedmm.config.toml import merge_tables, read_tables
from fedmm.core.signals.validators import VALIDATORS, Validator
from fedmm.runs.build import DataCache, prepare
from fedmm.training.batched import StackRun
from fedmm.training.history import Row
from fedmm.training.stack_settings import choose_settings

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "validators.json"
ORACLE = "oracle_target_accuracy"
WELL, BADLY = 0.7, 0.3
"""A validator is said to do well from the first rank correlation on, and badly below the second."""

QUICK = ("algorithm.lr_min", "run.seed")

DIGITS: dict[str, Any] = {
    "run": {"rounds": 150, "evaluate_every": 5, "best_by": ""},
    "data": {"name": "digits", "validation_rows": 200},
    "model": {"name": "mlp", "hidden": [128, 64], "adversary_hidden": [64]},
    "objective": {"name": "dann"},
    "algorithm": {"name": "fedmm", "local_steps": 10},
}
DIGITS_SWEEP: dict[str, list[Any]] = {
    "algorithm.lr_min": [0.01, 0.03, 0.1],
    "algorithm.penalty_min": [0.5, 2.0],
    "objective.nu": [0.3, 1.0, 3.0],
    "run.seed": [0, 1, 2],
}
MNIST_M_SWEEP: dict[str, list[Any]] = {
    "algorithm.lr_min": [0.003, 0.01, 0.03],
    "algorithm.penalty_min": [0.5, 2.0],
    "objective.nu": [0.3, 1.0, 3.0],
    "run.seed": [0, 1],
}


@dataclass(frozen=True)
class Ran:
    """One run: its setting in words, and the history rows of its evaluated rounds."""

    setting: str
    seed: int
    rows: list[Row]

    def values(self, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return a column over the evaluations; values that are missing or not finite are NaN."""
        found = [row.get(column) for row in self.rows]
        array = np.array([np.nan if value is None else value for value in found], dtype=np.float64)
        return np.where(np.isfinite(array), array, np.nan)


def experiments(data: str, rounds: int, device: str, *, quick: bool) -> list[Experiment]:
    """Return the grid; omega and psi have equal learning rates and equal penalties."""
    if data == "mnist_m":
        base = read_tables(HERE.parent / "paper" / "figure_5" / "dann_1s1t" / "fedmm.toml")
        base.pop("sweep", None)
        base = merge_tables(base, {"run": {"rounds": 2000, "evaluate_every": 50, "best_by": ""}})
        sweep = MNIST_M_SWEEP
    else:
        base, sweep = DIGITS, DIGITS_SWEEP
    base = merge_tables(base, {"run": {"device": device, **({"rounds": rounds} if rounds else {})}})
    if quick:
        base = merge_tables(base, {"run": {"rounds": 4, "evaluate_every": 1}, "algorithm": {"local_steps": 2}})
        if data == "mnist_m":
            base = merge_tables(base, {"data": {"train_rows": 256, "test_rows": 128}})
        sweep = {key: values[: 2 if key in QUICK else 1] for key, values in sweep.items()}
    found = []
    for each in grid({**base, "sweep": sweep}):
        tables = each.tables()
        algorithm = {**tables["algorithm"]}
        algorithm |= {"lr_max": algorithm["lr_min"], "penalty_max": algorithm["penalty_min"]}
        found.append(experiment({**tables, "algorithm": algorithm}))
    return found


def setting(each: Experiment) -> str:
    """Return what differs between runs, except the seed."""
    algorithm = each.algorithm
    penalty = getattr(algorithm, "penalty_min", 0.0)
    return f"lr={algorithm.lr_min} penalty={penalty} nu={each.objective.nu}"


def run(given: Sequence[Experiment], stack: int) -> list[Ran]:
    """Train all runs in stacks; return those with evaluations, in order."""
    cache = DataCache()
    adaptations = [prepare(each, cache) for each in given]
    rows: dict[int, list[Row]] = {number: [] for number in range(len(given))}
    for group in groups(given, adaptations):
        for first in range(0, len(group.members), stack):
            members = group.members[first : first + stack]
            own, options = [adaptations[number] for number in members], given[members[0]].run
            tuned = choose_settings(own, options.precision, options.threads)
            torch.set_num_threads(tuned.threads)

            program = StackRun(own, options.precision, tuned.settings)
            program.run(options.rounds, options.evaluate_every)
            for number, history in zip(members, program.histories, strict=True):
                rows[number] += [row for row in history if row.get("target_accuracy") is not None]
    return [Ran(setting(each), each.run.seed, rows[number]) for number, each in enumerate(given) if rows[number]]


def correlation(validator: Validator, values: Any, accuracies: Any) -> float | None:
    """Return Spearman's correlation, signed so that +1 is best; None below three values or if either is constant."""
    known = np.isfinite(values)
    if known.sum() < 3 or np.ptp(values[known]) == 0 or np.ptp(accuracies[known]) == 0:
        return None
    found = float(spearmanr(values[known], accuracies[known]).statistic)
    return found if validator.higher else -found


def chosen(validator: Validator, values: Any) -> int:
    """Return the index of the first best value, or the last index if none is finite."""
    signed = values if validator.higher else -values
    return int(np.nanargmax(signed)) if np.isfinite(signed).any() else len(values) - 1


def assessed(validator: Validator, runs: Sequence[Ran]) -> dict[str, Any]:
    """Return a validator's correlations, and the accuracies of what it selects."""
    within, by_checkpoint = [], []
    for each in runs:
        values, accuracies = each.values(validator.column), each.values("target_accuracy")
        within.append(correlation(validator, values, accuracies))
        by_checkpoint.append(float(accuracies[chosen(validator, values)]))
    across, by_setting, by_both = [], [], []
    for seed in sorted({each.seed for each in runs}):
        of_seed = [each for each in runs if each.seed == seed]
        last = np.array([each.values(validator.column)[-1] for each in of_seed])
        accuracies = np.array([each.values("target_accuracy")[-1] for each in of_seed])
        across.append(correlation(validator, last, accuracies))
        by_setting.append(float(accuracies[chosen(validator, last)]))
        everything = np.concatenate([each.values(validator.column) for each in of_seed])
        at_all = np.concatenate([each.values("target_accuracy") for each in of_seed])
        by_both.append(float(at_all[chosen(validator, everything)]))
    known = [value for value in within if value is not None]
    between = [value for value in across if value is not None]
    return {
        "within": fmean(known) if known else None,
        "within_runs": len(known),
        "within_range": [min(known), max(known)] if known else None,
        "across": fmean(between) if between else None,
        "across_by_seed": across,
        "accuracy_of_chosen_checkpoint": fmean(by_checkpoint),
        "accuracy_of_chosen_setting": fmean(by_setting),
        "accuracy_of_chosen_setting_and_checkpoint": fmean(by_both),
    }


def verdict(value: float | None) -> str:
    """Return a rank correlation in a word."""
    if value is None:
        return "not measured"
    return "well" if value >= WELL else "badly" if value < BADLY else "weakly"


def table(result: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| validator | within a run | across settings | checkpoint | setting | both | tells |",
        "|---" * 7 + "|",
    ]

    def percent(value: float) -> str:
        return f"{value:.1%}"

    def signed(value: float | None) -> str:
        return "-" if value is None else f"{value:+.2f}"

    for name, each in result["validators"].items():
        accuracies = [
            percent(each[f"accuracy_of_chosen_{what}"]) for what in ("checkpoint", "setting", "setting_and_checkpoint")
        ]
        tells = "target labels" if name == ORACLE else f"{each['tells_within']} within, {each['tells_across']} across"
        lines.append(
            f"| `{name}` | {signed(each['within'])} | {signed(each['across'])} | {' | '.join(accuracies)} | {tells} |"
        )
    plain = result["without_choosing"]
    lines.append(
        f"| none: last checkpoint, mean over settings | | | {percent(plain['last_checkpoint'])} | "
        f"{percent(plain['mean_over_settings'])} | {percent(plain['mean_over_settings'])} | |"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=("digits", "mnist_m"), default="digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--stack", type=int, default=64, help="runs in one program, at most")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    load, began = os.getloadavg()[0], time.perf_counter()
    given = experiments(options.data, options.rounds, options.device, quick=options.quick)
    runs = run(given, options.stack)
    seconds = time.perf_counter() - began
    measured = [each for each in VALIDATORS.values() if any(each.column in row for row in runs[0].rows)]
    found = {each.name: assessed(each, runs) for each in measured}
    for each in found.values():
        each |= {f"tells_{where}": verdict(each[where]) for where in ("within", "across")}
    last = fmean(float(each.values("target_accuracy")[-1]) for each in runs)
    result = {
        **measured_on(typed_command(), load),
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu",
        "seconds": round(seconds, 1),
        "settings": len({each.setting for each in runs}),
        "seeds": len({each.seed for each in runs}),
        "rounds": given[0].run.rounds,
        "checkpoints_of_a_run": len(runs[0].rows),
        "validators": found,
        "without_choosing": {"last_checkpoint": last, "mean_over_settings": last},
        "runs": [
            {
                "setting": each.setting,
                "seed": each.seed,
                "oracle_target_accuracy": float(np.nanmax(each.values("target_accuracy"))),
                "last": {name: each.rows[-1].get(VALIDATORS[name].column) for name in found},
            }
            for each in runs
        ],
    }
    sys.stdout.write(table(result) + "\n")
    if not options.quick:
        before = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
        text = json.dumps({**before, options.data: _finite(result)}, indent=2, allow_nan=False)
        options.out.write_text(text + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """Replace floats that are not finite, which JSON does not have, with None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


if __name__ == "__main__":
    main()
