"""Test on a rare class whether optimising only the start of the ROC curve improves that part.

    python benchmarks/partial_auc.py

Data, the six pairs of rates and seeds are those of rare_class.py. Rates are chosen by the partial AUROC up to a false
positive rate of 0.1 on the rows set aside, computed from the scores as `fedmm evaluate --max-fpr 0.1` does.

Results go to benchmarks/results/partial_auc.json after each method; existing ones are kept. `table` prints them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from common import measured_on, run_or_table, typed_command
from rare_class import AUC, BALANCED, CHOOSING, CONFIRMING, RATES, mean_and_deviation, runs_of
from rare_class import table as table_of

from fedmm.config.schema import Experiment
from fedmm.inference.evaluate import evaluate, rows_named
from fedmm.inference.load_run import open_run
from fedmm.runs.sweep import DivergedRuns, run_sweep

RESULTS = Path(__file__).parent / "results" / "partial_auc.json"
MAX_FPR = 0.1
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "class-weighted cross entropy, FedMM": (BALANCED, "fedmm"),
    "AUC, FedMM": (AUC, "fedmm"),
    f"AUC with max_fpr = {MAX_FPR}, FedMM": (AUC | {"max_fpr": MAX_FPR}, "fedmm"),
}
SETTINGS = ("breast_cancer_10", "digits_10")


def measure(setting: str, method: str) -> dict[str, Any]:
    """Choose the rates; return them and what the confirming seeds reach on test rows."""
    tried = [run for rates in RATES for run in runs_of(setting, method, rates, CHOOSING, "cpu", METHODS)]
    values = iter(_scored(tried, "source-validation"))
    chosen = {rates: fmean(next(values)[0] or 0.0 for _ in CHOOSING) for rates in RATES}
    best = max(chosen, key=lambda rates: chosen[rates])
    partial, whole = zip(
        *_scored(runs_of(setting, method, best, CONFIRMING, "cpu", METHODS), "source-test"), strict=True
    )
    return {
        "rates": best,
        "validation_partial_auroc": {f"{low:g}, {high:g}": value for (low, high), value in chosen.items()},
        "partial_auroc": partial,
        "auroc": whole,
    }


def _scored(runs: list[Experiment], rows: str) -> list[tuple[float | None, float | None]]:
    """Return partial and whole AUROC of each run's last model; None if a run diverged."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "runs"
        try:
            listed = run_sweep(runs, there, title="partial AUC", progress=False, all_shifts=False)["runs"]
        except DivergedRuns as diverged:
            listed = diverged.summary["runs"]
        return [_score(there / run["folder"], rows) if run["status"] == "completed" else (None, None) for run in listed]


def _score(folder: Path, rows: str) -> tuple[float | None, float | None]:
    run = open_run(folder)
    scores = evaluate(run, rows, rows_named(run, rows), max_fpr=MAX_FPR).scores
    return scores.partial_auc, scores.auc


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table of both areas on test rows: mean and deviation over the confirming seeds."""
    return table_of(results, {"AUROC up to 0.1": "partial_auroc", "AUROC": "auroc"})


def main() -> None:
    given = run_or_table(__doc__, RESULTS).parse_args()
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"measured": {}, "data": {}}
    if given.action == "run":
        for setting in SETTINGS:
            found = kept["data"].setdefault(setting, {})
            kept["measured"].setdefault(setting, measured_on(typed_command(), os.getloadavg()[0]))
            for method in METHODS:
                if method not in found:
                    found[method] = measure(setting, method)
                    given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
                    sys.stderr.write(f"{setting}, {method}: {mean_and_deviation(found[method]['partial_auroc'])}\n")
    print(table(kept["data"]))


if __name__ == "__main__":
    main()
