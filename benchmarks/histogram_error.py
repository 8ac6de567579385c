"""Compare AUROC and average precision from histograms with scikit-learn's, and with their own error bounds.

Also count the questions that this takes: rows are counted again in finer bins while a bound is above 0.001.

    python benchmarks/histogram_error.py [run|table]

Scores are normal, or a narrow core within wide tails, with class 1 one standard deviation higher; they are float32 like
a network's. Reported: the largest difference from scikit-learn, the largest bound and the most questions of five seeds.
Results go to benchmarks/results/histogram_error.json, and as a table to the terminal.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import measured_on, typed_command
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from fedmm.core.metrics import Refinable, Seen, count_finer
from fedmm.core.signals.ranking import Ranking

RESULTS = Path(__file__).parent / "results" / "histogram_error.json"
SEEDS = range(5)
ROWS = {"1,000 of 2,000": (2000, 1000), "20 of 2,000": (2000, 20), "200 of 20,000": (20_000, 200)}
SPREADS = (1.0, 1e-2, 1e-4, 1e-5)
MEANS = (-5.0, 0.1, 40.0)
CORE, CORE_DEVIATION, TAIL_DEVIATION = 0.8, 0.005, 3.0


def scores_in_one_band(y: NDArray[np.bool_], mean: float, spread: float, draw: np.random.Generator) -> NDArray[Any]:
    return mean + abs(mean) * spread * (draw.normal(size=len(y)) + y)


def scores_around_a_core(y: NDArray[np.bool_], draw: np.random.Generator) -> NDArray[Any]:
    inside = draw.random(len(y)) < CORE
    narrow, wide = (deviation * (draw.normal(size=len(y)) + y) for deviation in (CORE_DEVIATION, TAIL_DEVIATION))
    return np.where(inside, -5.0 + narrow, wide)


def differences(scores: NDArray[Any], y: NDArray[np.bool_]) -> list[float]:
    """Return the difference from scikit-learn and the bound, of AUROC and of average precision, and the questions."""
    s = torch.from_numpy(scores.astype(np.float32))
    seen, first = Seen(torch.stack([torch.zeros_like(s), s], dim=-1), torch.from_numpy(y).long()), Ranking()
    asked = [first.sums(seen)]

    def count(finer: Refinable) -> torch.Tensor:
        asked.append(finer.sums(seen))
        return asked[-1]

    ranking, sums = count_finer(first, asked[0], len(y), count)
    auroc, auroc_error, average, average_error, _ = ranking.value(sums, len(y)).tolist()
    true = roc_auc_score(y, s.numpy()), average_precision_score(y, s.numpy())
    return [abs(auroc - true[0]), auroc_error, abs(average - true[1]), average_error, len(asked)]


def measure() -> list[dict[str, Any]]:
    found = []
    for name, (rows, positives) in ROWS.items():
        y = np.arange(rows) < positives
        for spread in (*SPREADS, None):
            worst = [0.0] * 5
            for seed in SEEDS:
                draw = np.random.default_rng(seed)
                drawn = (
                    [scores_around_a_core(y, draw)]
                    if spread is None
                    else [scores_in_one_band(y, mean, spread, draw) for mean in MEANS]
                )
                for scores in drawn:
                    worst = [max(pair) for pair in zip(worst, differences(scores, y), strict=True)]
            found.append({"positives": name, "spread": spread, "worst": worst})
    return found


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| positive rows | standard deviation | AUROC off by | bound | average precision off by | bound | questions |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for each in results:
        spread = "core and tails" if each["spread"] is None else f"{each['spread']:g} of the mean"
        *errors, questions = each["worst"]
        lines.append(f"| {each['positives']} | {spread} | {' | '.join(f'{e:.5f}' for e in errors)} | {questions:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "table"), default="run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.action == "run":
        kept = {"measured": measured_on(typed_command(), os.getloadavg()[0]), "data": measure()}
        given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(given.out.read_text(encoding="utf-8"))["data"]))


if __name__ == "__main__":
    main()
