"""Compare known remedies for FedMM's instability by one blind protocol, on rotated digits or on MNIST-M.

    python benchmarks/remedies.py measure [--panels dann_1s2t] [--candidates plain,restrained]
    python benchmarks/remedies.py choose
    python benchmarks/remedies.py confirm --candidates plain,restrained,CHOSEN
    python benchmarks/remedies.py table
    FEDMM_DATA=... python benchmarks/remedies.py measure --scale mnist_m --device cuda --precision tf32

Every candidate is FedMM with one change, or restrained FedMM with one more; rates and local steps are the same for all,
and so are penalties, except 2 for ``ascent`` and ``adaptive``. ``measure`` runs seeds 10 to 13 and reads no accuracy,
only information on the target's training inputs and the risk on held-out source rows. ``choose`` applies the rule of
choose_default.py. ``confirm`` runs the given candidates on seeds 100 to 107 and reads target accuracies; it is meant to
be run once, after the choice is committed. Each panel has a file in results/remedies/SCALE/measure or .../confirm.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from choose_default import PAPER, accuracies, choose, run_panel, signals
from common import processor, typed_command

from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import groups
from fedmm.config.toml import read_tables
from fedmm.runs.build import DataCache, prepare

RESULTS = Path(__file__).parent / "results" / "remedies"
PANELS = ("dann_1s2t", "cdan_2s1t")
SCALES = {
    "digits": {"penalty": 0.5, "lr": 0.02, "rounds": 800},
    "mnist_m": {"penalty": 2.0, "lr": 0.01, "rounds": 3000},
}
PULLED = {"name": "fedmm_smoothed", "smoothing_max": 0.5, "centre_rate": 0.1}
LONGER = {"penalty_min": 2.0, "penalty_max": 2.0}
CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "smoothed_psi": {"algorithm": PULLED},
    "smoothed_both": {"algorithm": {**PULLED, "smoothing_min": 0.5}},
    "ascent": {"algorithm": {"name": "fedmm_ascent", **LONGER}},
    "adaptive": {"algorithm": {"name": "fedmm_adaptive", **LONGER}},
    "domain_smoothing": {"objective": {"domain_smoothing": 0.1}},
    "warm_start": {"schedule": {"share": 0.1}},
    "restrained": {"objective": {"restrained": True}},
    "restrained_averaged": {"algorithm": {"name": "fedmm_restrained", "average_rate": 0.01}},
    "restrained_smoothed_both": {
        "algorithm": {**PULLED, "smoothing_min": 0.5}, "objective": {"restrained": True},
    },
    "restrained_domain_smoothing": {"objective": {"restrained": True, "domain_smoothing": 0.1}},
    "restrained_warm_start": {"objective": {"restrained": True}, "schedule": {"share": 0.1}},
}  # fmt: skip
"""Each candidate's changes to the algorithm, the objective, and the schedule of nu."""


@dataclass(frozen=True)
class SourceFirst:
    """A schedule of nu: 0 for the first ``share`` of the rounds, so features learn the source alone, then full."""

    share: float

    def __call__(self, t: int, rounds: int) -> float:
        return 0.0 if t < self.share * rounds else 1.0


def build(scale: str, panel: str, candidate: str, run: dict[str, Any]) -> Experiment:
    """Return a candidate's experiment in a panel."""
    own, settings = CANDIDATES[candidate], SCALES[scale]
    objective, _, clients = panel.partition("_")
    if scale == "digits":
        tables: dict[str, Any] = {
            "run": {"threads": 1},
            "data": {"name": "digits", "validation_rows": 200},
            "partition": {
                "name": "source_target", "source_clients": int(clients[0]), "target_clients": int(clients[2]),
            },
            "model": {"name": "mlp", "hidden": [128, 64], "adversary_hidden": [64]},
            "objective": {"name": objective},
        }  # fmt: skip
    else:
        tables = read_tables(PAPER / "figure_5" / panel / "fedmm.toml")
        tables.pop("sweep", None)
    algorithm = {
        "name": "fedmm",
        "lr_min": settings["lr"],
        "lr_max": settings["lr"],
        "penalty_min": settings["penalty"],
        "penalty_max": settings["penalty"],
        "local_steps": 20,
        **own.get("algorithm", {}),
    }
    built = experiment(
        {
            **tables,
            "objective": {**tables["objective"], **own.get("objective", {})},
            "algorithm": algorithm,
            "run": {**tables["run"], **run, "label": candidate},
        }
    )
    if schedule := own.get("schedule"):
        built = replace(built, objective=replace(built.objective, nu_schedule=SourceFirst(**schedule)))
    return built


def table(folder: Path) -> str:
    """Return Markdown tables of candidates and panels: measured signals, then confirmed accuracies."""
    lines: list[str] = []
    for mode, columns in (("measure", ("target_information", "source_risk")), ("confirm", ("last", "best"))):
        results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((folder / mode).glob("*.json"))]
        results = sorted(results, key=lambda result: PANELS.index(result["panel"]))
        if not results:
            continue
        heads = ["candidate", *(result["panel"].replace("_", " ") for result in results)]
        lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for candidate in CANDIDATES:
            cells = [_cell(candidate, result["runs"], columns) for result in results]
            if any(cells):
                lines.append(f"| {candidate} | {' | '.join(cells)} |")
    return "\n".join(lines[1:])


def _cell(candidate: str, runs: list[dict[str, Any]], columns: tuple[str, str]) -> str:
    own = [run for run in runs if run["candidate"] == candidate]
    if not own:
        return ""
    first, second = ([run[column] for run in own] for column in columns)
    diverged = sum(run["status"] == "diverged" for run in own)
    if columns[0] == "last":
        fell = sum(not last >= best - 0.1 for last, best in zip(first, second, strict=True))
        words = f"{100 * sum(first) / len(own):.1f} ({100 * min(first):.1f} to {100 * max(first):.1f})"
        words += f", {fell} fell" if fell else ""
    else:
        words = f"{max(min(first), 0.0):.2f} to {max(first):.2f}, {sum(second) / len(own):.2f}"
    return words + (f", {diverged} diverged" if diverged else "")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("mode", choices=("measure", "choose", "confirm", "table"))
    arguments.add_argument("--scale", choices=tuple(SCALES), default="digits")
    arguments.add_argument("--panels", default=",".join(PANELS))
    arguments.add_argument("--candidates", default=",".join(CANDIDATES))
    arguments.add_argument("--seeds")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--precision", default="fp32")
    arguments.add_argument("--rounds", type=int)
    options = arguments.parse_args()
    folder = RESULTS / options.scale
    if options.mode == "table":
        print(table(folder))
        return
    if options.mode == "choose":
        files = sorted((folder / "measure").glob("*.json"))
        measured = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        chosen, refused = choose({result["panel"]: result["runs"] for result in measured})
        print(*(f"refused {name}: {why}" for name, why in refused.items()), f"chosen: {chosen}", sep="\n")
        return
    confirm = options.mode == "confirm"
    seeds = [
        int(seed)
        for seed in (options.seeds or ("100,101,102,103,104,105,106,107" if confirm else "10,11,12,13")).split(",")
    ]
    candidates = [name for name in CANDIDATES if name in options.candidates.split(",")]
    rounds = options.rounds or SCALES[options.scale]["rounds"]
    run = {"rounds": rounds, "evaluate_every": 50, "device": options.device, "precision": options.precision}
    torch.set_num_threads(1)
    (folder / options.mode).mkdir(parents=True, exist_ok=True)
    for panel in options.panels.split(","):
        file = folder / options.mode / f"{panel}.json"
        if file.exists():
            continue
        began, runs, cache = time.perf_counter(), list[dict[str, Any]](), DataCache()
        planned = [
            (name, build(options.scale, panel, name, {**run, "seed": seed})) for name in candidates for seed in seeds
        ]
        built = [each for _, each in planned]
        for group in groups(built, [prepare(each, cache) for each in built]):
            listed = [planned[number] for number in group.members]
            stack = run_panel(listed, options, cache)
            runs += (
                accuracies(stack, listed) if confirm else signals(stack, listed, ("target_information", "source_risk"))
            )
        result = {
            "command": typed_command(),
            "hardware": processor() if options.device == "cpu" else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - began, 1),
            "rounds": rounds,
            "panel": panel,
            "runs": runs,
        }
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
