"""Choose one FedMM for DANN, CDAN and MDD on MNIST-M from signals that need no target labels, then confirm it once.

    FEDMM_DATA=... python benchmarks/choose_default.py measure [--panels dann_1s1t,cdan_1s1t,...] [--seeds 10,11,12,13]
    python benchmarks/choose_default.py choose
    FEDMM_DATA=... python benchmarks/choose_default.py confirm [--panels ...] [--seeds 100,...,107]
    python benchmarks/choose_default.py table
        [--candidates a,b | plain] [--rounds 3000] [--device cuda] [--precision tf32] [--out FOLDER] [--quick]

``measure`` never reads the target accuracy. For each run it records two means over the last JUDGED evaluations:
information maximisation on the target clients' training inputs and the risk on held-out source digits. ``choose`` reads
these files. It refuses a candidate if in some panel a run diverged, a run collapsed (information below COLLAPSED times
that of the panel's best run), or its mean source risk exceeds RISK times the panel's lowest. Of the others it takes the
one with the highest information, summed over the panels measured with all of them.
``confirm`` runs candidates on other seeds and reads the accuracies of the last and the best round; it is meant to be
run once, after the choice is committed. ``table`` prints the confirmed accuracies of the last round (for a diverged
run, the last before it diverged), how many runs ended more than FELL below their own best, and how many diverged.
Each panel's file, OUT/MODE/PANEL_CANDIDATES_SEED.json with the first seed, is written when the panel is done.
"""

from __future__ import annotations

import argparse
import json
import math
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
from fedmm.training.batched import StackRun
from fedmm.training.stack_settings import choose_settings

HERE = Path(__file__).parent
PAPER = HERE.parent / "paper"
PANELS = tuple(
    f"{objective}_{clients}" for objective in ("dann", "cdan", "mdd") for clients in ("1s1t", "2s1t", "1s2t")
)
BEYOND = ("dann_disjoint_2s1t", "dann_5s5t")
ROUNDS = {"dann_5s5t": 1000}
"""Rounds of the panels that do not run for 3,000."""
PLAIN = ("fedmm_1", "fedmm_2", "fedmm_2_slow")
"""The plain FedMM settings of figure 5, which the choice is compared with on the confirming seeds."""
JUDGED, RISK, COLLAPSED, FELL = 5, 2.0, 0.75, 0.10
SHARED: dict[str, Any] = {"lr_min": 0.01, "lr_max": 0.01, "local_steps": 20}
CANDIDATES: dict[str, dict[str, Any]] = {
    "fedmm_1": {"name": "fedmm", "penalty_min": 1.0, "penalty_max": 1.0, "dual_decay": 1 / 1.0001},
    "fedmm_2": {"name": "fedmm", "penalty_min": 2.0, "penalty_max": 2.0, "dual_decay": 1 / 1.0005},
    "fedmm_2_slow": {"name": "fedmm", "penalty_min": 2.0, "penalty_max": 2.0, "dual_decay": 1 / 1.0002},
    "smoothed_0.75": {"name": "fedmm_smoothed", "penalty_min": 0.75, "penalty_max": 0.75},
    "ascent_1.25": {"name": "fedmm_ascent", "server_lr_max": 1.25},
    "ascent_1.5": {"name": "fedmm_ascent", "server_lr_max": 1.5},
    "ascent_1.75": {"name": "fedmm_ascent", "server_lr_max": 1.75},
    "ascent_1.75_mu_1.5": {"name": "fedmm_ascent", "server_lr_max": 1.75, "penalty_min": 1.5, "penalty_max": 1.5},
    "ascent_1.75_guarded": {"name": "fedmm_ascent", "server_lr_max": 1.75, "guard": {"policy": "rollback"}},
    "ascent_1.75_restrained": {"name": "fedmm_ascent", "server_lr_max": 1.75, "restrained": True},
    "adaptive_1.75": {"name": "fedmm_adaptive", "server_lr_max": 1.75},
    "adaptive_2.5": {"name": "fedmm_adaptive", "server_lr_max": 2.5},
    "adaptive_1.75_quick": {"name": "fedmm_adaptive", "server_lr_max": 1.75, "curvature_rate": 0.5},
    "adaptive_1.75_guarded": {"name": "fedmm_adaptive", "server_lr_max": 1.75, "guard": {"policy": "rollback"}},
    "adaptive_2.5_restrained": {"name": "fedmm_adaptive", "server_lr_max": 2.5, "restrained": True},
    "fedmm_1_restrained": {"name": "fedmm", "penalty_min": 1.0, "penalty_max": 1.0, "restrained": True},
    "restrained_averaged": {"name": "fedmm_restrained", "average_rate": 0.01},
    "fedmm_2_restrained": {"name": "fedmm", "penalty_min": 2.0, "penalty_max": 2.0, "restrained": True},
}
"""Options of the algorithm; ``guard``: of the guard; ``restrained``: restrain features if the objective supports it."""


def listed_runs(
    panel: str, candidates: list[str], seeds: list[int], run: dict[str, Any], rows: dict[str, int]
) -> list[tuple[str, Experiment]]:
    """Return a panel's experiments: every candidate with every seed. run, rows: changes to ``[run]`` and ``[data]``."""
    tables = read_tables(PAPER / ("beyond" if panel in BEYOND else "figure_5") / panel / "fedmm.toml")
    tables.pop("sweep", None)
    algorithms = {name: {**SHARED, **CANDIDATES[name]} for name in candidates}
    guards = {name: options.pop("guard", {}) for name, options in algorithms.items()}
    restrained = {name: options.pop("restrained", False) for name, options in algorithms.items()}
    telling = tables["objective"]["name"] in ("dann", "cdan")
    return [
        (
            name,
            experiment(
                {
                    **tables,
                    "data": {**tables["data"], **rows},
                    "objective": {
                        **tables["objective"],
                        **({"restrained": True} if telling and restrained[name] else {}),
                    },
                    "algorithm": algorithms[name],
                    "guard": guards[name],
                    "run": {**tables["run"], **run, "seed": seed, "label": name},
                }
            ),
        )
        for name in candidates
        for seed in seeds
    ]


def run_panel(listed: list[tuple[str, Experiment]], options: argparse.Namespace, cache: DataCache) -> StackRun:
    """Train all runs of a panel as one stack to their last round."""
    adaptations = [prepare(each, cache) for _, each in listed]
    settings = choose_settings(adaptations, options.precision, threads=1).settings
    stack = StackRun(adaptations, options.precision, settings)
    rounds, every = listed[0][1].run.rounds, listed[0][1].run.evaluate_every
    while stack.engine.round < rounds:
        stack.run(min(rounds, stack.engine.round + every), every)
        sys.stderr.write(f"\r  round {stack.engine.round} of {rounds}")
    sys.stderr.write("\n")
    return stack


def signals(stack: StackRun, listed: list[tuple[str, Experiment]], columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return each run's means of these columns over its last JUDGED evaluations."""
    found = []
    for replica, (name, each) in enumerate(listed):
        training = stack.training(replica, "completed")
        seen: list[dict[str, Any]] = [dict(row) for row in training.history if row.get(columns[0]) is not None][
            -JUDGED:
        ]
        means = {column: fmean(row[column] for row in seen) if seen else math.nan for column in columns}
        found.append({"candidate": name, "seed": each.run.seed, "status": training.status, **means})
    return found


def accuracies(stack: StackRun, listed: list[tuple[str, Experiment]]) -> list[dict[str, Any]]:
    """Return each run's target accuracies at its last and its best evaluation."""
    found = []
    for replica, (name, each) in enumerate(listed):
        training = stack.training(replica, "completed")
        seen = [value for row in training.history if (value := row.get("target_accuracy")) is not None]
        last, best = (seen[-1], max(seen)) if seen else (math.nan, math.nan)
        found.append({"candidate": name, "seed": each.run.seed, "status": training.status, "last": last, "best": best})
    return found


def choose(panels: dict[str, list[dict[str, Any]]]) -> tuple[str | None, dict[str, str]]:
    """Return the chosen candidate (None if all are refused) and why each refused one was refused."""
    refused: dict[str, str] = {}
    means: dict[str, dict[str, float]] = {}
    for panel, runs in panels.items():
        best = max(run["target_information"] for run in runs if run["status"] == "completed")
        by_name: dict[str, list[dict[str, Any]]] = {}
        for run in runs:
            by_name.setdefault(run["candidate"], []).append(run)
        risk = {name: fmean(run["source_risk"] for run in own) for name, own in by_name.items()}
        lowest = min(value for value in risk.values() if math.isfinite(value))
        for name, own in by_name.items():
            means.setdefault(name, {})[panel] = fmean(run["target_information"] for run in own)
            if any(run["status"] != "completed" for run in own):
                refused.setdefault(name, f"a run of {panel} diverged")
            elif any(run["target_information"] < COLLAPSED * best for run in own):
                refused.setdefault(name, f"a run of {panel} collapsed")
            elif not risk[name] <= RISK * lowest:
                refused.setdefault(name, f"its source risk in {panel} is {risk[name]:.3f}, the lowest is {lowest:.3f}")
    left = {name: own for name, own in means.items() if name not in refused}
    shared = set[str](panels).intersection(*left.values())
    return max(left, key=lambda name: sum(left[name][panel] for panel in shared), default=None), refused


def print_choice(folder: Path) -> None:
    """Print the choice from a folder's files, and why other candidates were refused."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        panels.setdefault(result["panel"], []).extend(result["runs"])
    chosen, refused = choose(panels)
    for name, why in refused.items():
        sys.stdout.write(f"refused {name}: {why}\n")
    sys.stdout.write(f"chosen: {chosen}\n")


def print_table(folder: Path) -> None:
    """Print the confirmed accuracies in a folder's files as a Markdown table."""
    header = ("panel", "candidate", "seeds", "mean", "worst", "every run", "fell", "diverged")
    sys.stdout.write(f"| {' | '.join(header)} |\n{'|---' * len(header)}|\n")
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    for result in sorted(results, key=lambda found: (*PANELS, *BEYOND).index(found["panel"])):
        for name in result["settings"]:
            runs = [run for run in result["runs"] if run["candidate"] == name]
            last = [100 * run["last"] for run in runs]
            fell = sum(not run["last"] >= run["best"] - FELL for run in runs)
            diverged = sum(run["status"] == "diverged" for run in runs)
            sys.stdout.write(
                f"| {result['panel']} | {name} | {runs[0]['seed']} to {runs[-1]['seed']} "
                f"| {fmean(last):.1f} | {min(last):.1f} "
                f"| {', '.join(f'{value:.1f}' for value in last)} | {fell} | {diverged} |\n"
            )


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("mode", choices=("measure", "choose", "confirm", "table"))
    arguments.add_argument("--panels", default=",".join(PANELS))
    arguments.add_argument("--candidates", default=",".join(CANDIDATES))
    arguments.add_argument("--seeds")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--precision", default="fp32")
    arguments.add_argument("--rounds", type=int, help="3,000 by default, with ten clients 1,000")
    arguments.add_argument("--out", type=Path, default=HERE / "results" / "default")
    arguments.add_argument("--quick", action="store_true", help="two rounds on a few rows")
    options = arguments.parse_args()
    if options.mode == "choose":
        print_choice(options.out / "measure")
        return
    if options.mode == "table":
        print_table(options.out / "confirm")
        return
    confirm = options.mode == "confirm"
    seeds = [
        int(seed)
        for seed in (options.seeds or ("100,101,102,103,104,105,106,107" if confirm else "10,11,12,13")).split(",")
    ]
    candidates = list(PLAIN) if options.candidates == "plain" else options.candidates.split(",")
    run: dict[str, Any] = {"device": options.device, "precision": options.precision}
    if options.quick:
        seeds, run = seeds[:1], {**run, "rounds": 2, "evaluate_every": 1, "batch_size": 16}
    rows = {"train_rows": 128, "test_rows": 128} if options.quick else {}
    folder, cache = options.out / options.mode, DataCache()
    folder.mkdir(parents=True, exist_ok=True)
    for panel in options.panels.split(","):
        began = time.perf_counter()
        rounds = options.rounds or ROUNDS.get(panel, 3000)
        listed = listed_runs(panel, candidates, seeds, {"rounds": rounds, **run}, rows)
        stack = run_panel(listed, options, cache)
        runs = accuracies(stack, listed) if confirm else signals(stack, listed, ("target_information", "source_risk"))
        result = {
            "command": typed_command(),
            "hardware": processor() if options.device == "cpu" else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - began, 1),
            "rounds": listed[0][1].run.rounds,
            "panel": panel,
            "settings": {name: {**SHARED, **CANDIDATES[name]} for name in candidates},
            "runs": runs,
        }
        file = folder / f"{panel}_{'_'.join(candidates)}_{seeds[0]}.json"
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        for row in runs:
            numbers = (f" {value:.4g}" if isinstance(value, float) else f" {value}" for value in row.values())
            sys.stdout.write(f"{panel:10}" + "".join(numbers) + "\n")
        sys.stdout.flush()
        del stack


if __name__ == "__main__":
    main()
