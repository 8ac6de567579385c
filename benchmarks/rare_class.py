"""Compare methods of ranking a rare class at sites that hold one class each, and measure what federating costs.

    python benchmarks/rare_class.py
    FEDMM_DATA=... python benchmarks/rare_class.py --settings mnist_10,mnist_100 --device cuda

Every method has the same budget: six pairs of learning rates, of which the AUROC on the rows set aside (mean over seeds
10 and 11) chooses one, and then five other seeds (0 to 4). The seed also determines the test rows, which are not used
before. "centralised" is one client with all rows and as many steps.

Results go to benchmarks/results/rare_class.json after each method; existing ones are kept. `table` prints them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from common import measured_on, run_or_table, typed_command

from fedmm.config.schema import Experiment, experiment
from fedmm.runs.sweep import DivergedRuns, run_sweep

RESULTS = Path(__file__).parent / "results" / "rare_class.json"
COLUMNS = {"AUROC": "auroc", "average precision": "average_precision"}
MLP = {"name": "mlp", "hidden": [32]}
SETTINGS: dict[str, dict[str, Any]] = {
    "breast_cancer_10": {
        "data": {"name": "unbalanced", "base": "breast_cancer", "negatives_per_positive": 10.0},
        "partition": {"name": "label_sorted", "clients": 6},
        "model": MLP,
        "run": {"rounds": 200, "batch_size": 16},
    },
    "digits_10": {
        "data": {"name": "unbalanced", "base": "digits", "negatives_per_positive": 10.0},
        "partition": {"name": "label_sorted", "clients": 10},
        "model": MLP,
        "run": {"rounds": 200, "batch_size": 16},
    },
    **{
        f"mnist_{ratio}": {
            "data": {"name": "unbalanced", "base": "mnist", "negatives_per_positive": float(ratio)},
            "partition": {"name": "label_sorted", "clients": 500},
            "model": {"name": "small_cnn", "initialisation": "truncated_normal"},
            "run": {"rounds": 400, "batch_size": 16, "participation": 0.032},
        }
        for ratio in (10, 100)
    },
}
PLAIN, BALANCED, AUC = {"name": "source_only"}, {"name": "source_only", "class_weights": "balanced"}, {"name": "auc"}
SCALED = {"name": "auc", "scaled": True}
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "cross entropy, FedAvg": (PLAIN, "fedavg_gda"),
    "class-weighted cross entropy, FedAvg": (BALANCED, "fedavg_gda"),
    "class-weighted cross entropy, FedMM": (BALANCED, "fedmm"),
    "AUC, FedAvgGDA": (AUC, "fedavg_gda"),
    "AUC, CODA+": (AUC, "coda_plus"),
    "AUC, CODASCA": (AUC, "codasca"),
    "AUC, FedMM": (AUC, "fedmm"),
    "AUC, centralised": (AUC, "fedavg_gda"),
    "scaled AUC, FedAvgGDA": (SCALED, "fedavg_gda"),
    "scaled AUC, CODA+": (SCALED, "coda_plus"),
    "scaled AUC, CODASCA": (SCALED, "codasca"),
    "scaled AUC, FedMM": (SCALED, "fedmm"),
    "scaled AUC, centralised": (SCALED, "fedavg_gda"),
    "class-weighted cross entropy, centralised": (BALANCED, "fedavg_gda"),
}
RATES = [(low, low * factor) for factor in (1.0, 10.0) for low in (0.01, 0.05, 0.2)]
CHOOSING, CONFIRMING = (10, 11), (0, 1, 2, 3, 4)
STEPS = 5


def runs_of(
    setting: str,
    method: str,
    rates: tuple[float, float],
    seeds: tuple[int, ...],
    device: str,
    methods: Mapping[str, tuple[dict[str, Any], str]] = METHODS,
) -> list[Experiment]:
    """Return a method's experiments with these rates, one per seed."""
    tables = SETTINGS[setting]
    objective, algorithm = methods[method]
    alone = method.endswith("centralised")
    return [
        experiment(
            {
                "data": {**tables["data"], "seed": seed},
                "partition": {"name": "centralised"} if alone else tables["partition"],
                "model": tables["model"],
                "objective": objective,
                "algorithm": {"name": algorithm, "lr_min": rates[0], "lr_max": rates[1], "local_steps": STEPS},
                "run": {
                    **tables["run"], **({"participation": 1.0} if alone else {}), "seed": seed, "device": device,
                    "evaluate_every": tables["run"]["rounds"], "best_by": "", "checkpoint_seconds": 0,
                    "label": f"{method} {rates} {seed}",
                },
            }
        )
        for seed in seeds
    ]  # fmt: skip


def measure(setting: str, method: str, device: str) -> dict[str, Any]:
    """Choose the rates; return them and what the confirming seeds reach on test rows."""
    tried = [run for rates in RATES for run in runs_of(setting, method, rates, CHOOSING, device)]
    values = iter(_last(tried, "validation_auroc"))
    chosen = {rates: fmean(next(values) or 0.0 for _ in CHOOSING) for rates in RATES}
    best = max(chosen, key=lambda rates: chosen[rates])
    runs = runs_of(setting, method, best, CONFIRMING, device)
    tested = _last(runs, "source_auroc", "source_average_precision")
    return {
        "rates": best,
        "validation_auroc": {f"{low:g}, {high:g}": value for (low, high), value in chosen.items()},
        "auroc": tested[: len(runs)],
        "average_precision": tested[len(runs) :],
    }


def _last(runs: list[Experiment], *columns: str) -> list[float | None]:
    """Return the runs' last values, column by column; None for a run that diverged."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "runs"
        try:
            listed = run_sweep(runs, there, title="rare class", progress=False, all_shifts=False)["runs"]
        except DivergedRuns as diverged:
            listed = diverged.summary["runs"]
        found = [
            json.loads((there / run["folder"] / "summary.json").read_text(encoding="utf-8"))
            if run["status"] == "completed"
            else {}
            for run in listed
        ]
        return [run.get(column) for column in columns for run in found]


def table(results: dict[str, Any], columns: Mapping[str, str] = COLUMNS) -> str:
    """Return a Markdown table of areas on test rows: mean and deviation over seeds. columns: keys by heading."""
    head = ("data", "method", *columns, "lr_min, lr_max")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for setting, methods in results.items():
        for method, found in methods.items():
            low, high = found["rates"]
            cells = [mean_and_deviation(found[name]) for name in columns.values()]
            lines.append(f"| {setting} | {method} | {' | '.join(cells)} | {low:g}, {high:g} |")
    return "\n".join(lines)


def mean_and_deviation(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    diverged = f", {len(values) - len(known)} diverged" if len(known) < len(values) else ""
    return f"{fmean(known):.4f} ± {stdev(known):.4f}{diverged}" if len(known) > 1 else "diverged"


def main() -> None:
    parser = run_or_table(__doc__, RESULTS)
    parser.add_argument("--settings", default="breast_cancer_10,digits_10")
    parser.add_argument("--methods", help="of METHODS, parted by ; (all by default)")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    chosen = given.methods.split(";") if given.methods else list(METHODS)
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"measured": {}, "data": {}}
    if given.action == "run":
        for setting in given.settings.split(","):
            found = kept["data"].setdefault(setting, {})
            missing = [method for method in chosen if method not in found]
            added = f"{setting}, from {missing[0]} on" if found and missing else setting
            kept["measured"].setdefault(added, measured_on(typed_command(), os.getloadavg()[0]))
            for method in missing:
                found[method] = measure(setting, method, given.device)
                given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
                sys.stderr.write(f"{setting}, {method}: {mean_and_deviation(found[method]['auroc'])}\n")
    print(table(kept["data"]))


if __name__ == "__main__":
    main()
