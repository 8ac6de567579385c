"""Compare methods on the worst-off group, with a site per group: Adult by education, COMPAS by race, German by age.

    FEDMM_ADULT=... FEDMM_COMPAS=... FEDMM_GERMAN=... python benchmarks/worst_site.py [--tables adult,compas,german]

Logistic regression on the tables of people.py, 200 rounds (400 for DRFA, whose rounds come in pairs). A fifth of each
group's training rows is set aside. For each method, the best of six settings by the worst group's accuracy on these
rows (mean over seeds 100 to 102) is trained with ten other seeds and tested on test rows that all seeds share.
A seed determines which rows are set aside, and the batches.

Results go to benchmarks/results/worst_site.json after each method; existing ones are kept. `table` prints them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from common import measured_on, run_or_table, typed_command
from numpy.typing import NDArray
from people import People, read_adult, read_compas, read_german
from torch import nn

import fedmm
from fedmm.core.algorithm import Algorithm
from fedmm.core.signals.intervals import wilson

RESULTS = Path(__file__).parent / "results" / "worst_site.json"
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
"""How to make each algorithm from two numbers, its six pairs of them, and whether rows weight the clients."""


def _by_education(people: People) -> NDArray[np.str_]:
    return np.where(people.words["education"] == "Doctorate", "doctorate", "rest")


def _by_race(people: People) -> NDArray[np.str_]:
    race = people.words["race"]
    return np.where(np.isin(race, ["African-American", "Caucasian", "Hispanic"]), race, "other")


def _by_age(people: People) -> NDArray[np.str_]:
    return np.where(people.numbers["age"] <= 25, "25 or younger", "older")


TABLES: Mapping[str, tuple[Callable[[Path], People], Callable[[People], NDArray[np.str_]]]] = {
    "adult": (read_adult, _by_education),
    "compas": (read_compas, _by_race),
    "german": (read_german, _by_age),
}
"""How to read each table, and the group of each of its rows."""


def groups_of(name: str, folder: Path) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """Return each group's training rows and test rows, smallest group first."""
    read, grouped = TABLES[name]
    people = read(folder)
    x, y, group = torch.from_numpy(people.inputs()), torch.from_numpy(people.y), grouped(people)
    names, counts = np.unique(group, return_counts=True)
    chosen = {str(names[i]): group == names[i] for i in np.argsort(counts)}
    training, tested = (
        {each: (x[own & part], y[own & part]) for each, own in chosen.items()}
        for part in (~people.tested, people.tested)
    )
    return training, tested


def train(
    train_rows: Mapping[str, Rows], algorithm: Algorithm, seed: int, *, by_rows: bool, tested: Mapping[str, Rows]
) -> dict[str, float]:
    """Train a model; return each group's accuracy on the rows set aside and on the test rows."""
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


def measure(rows: Mapping[str, Rows], tested: Mapping[str, Rows], method: str) -> dict[str, Any]:
    """Choose the setting; return it and each group's accuracies on test rows by seed."""
    make, settings, by_rows = METHODS[method]
    worst = {}
    for setting in settings:
        found = [train(rows, make(*setting), seed, by_rows=by_rows, tested={}) for seed in CHOOSING]
        worst[setting] = min(fmean(each[f"aside_{name}"] for each in found) for name in rows)
    best = max(worst, key=lambda setting: worst[setting])
    found = [train(rows, make(*best), seed, by_rows=by_rows, tested=tested) for seed in CONFIRMING]
    sizes = {name: len(y) for name, (_, y) in tested.items()}
    return {
        "setting": best,
        "worst_aside": {f"{one:g}, {other:g}": value for (one, other), value in worst.items()},
        "test_rows": sizes,
        **{name: [each[f"test_{name}"] for each in found] for name in rows},
        "all": [sum(each[f"test_{name}"] * sizes[name] for name in rows) / sum(sizes.values()) for each in found],
    }


def table(results: Mapping[str, Any]) -> str:
    """Return a Markdown table of test accuracies: mean and deviation by group, Wilson's interval for the smallest."""
    names = list(next(iter(results.values()))["test_rows"])
    lines = [
        f"| method | {names[0]} | 95 % of its rows | {' | '.join(names[1:])} | all | setting |",
        "|---" * (len(names) + 4) + "|",
    ]
    for method, found in results.items():
        rows = found["test_rows"][names[0]]
        low, high = wilson(round(fmean(found[names[0]]) * rows), rows)
        cells = [f"{fmean(found[name]):.1%} ± {stdev(found[name]):.1%}" for name in (*names, "all")]
        cells.insert(1, f"{low:.1%} to {high:.1%}")
        one, other = found["setting"]
        lines.append(f"| {method} | {' | '.join(cells)} | {one:g}, {other:g} |")
    return "\n".join(lines)


def main() -> None:
    parser = run_or_table(__doc__, RESULTS)
    parser.add_argument("--tables", default=",".join(TABLES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    for name in given.tables.split(","):
        results = kept.setdefault(name, {})
        if given.action == "run":
            training, tested = groups_of(name, Path(os.environ[f"FEDMM_{name.upper()}"]))
            kept.setdefault("measured", {}).setdefault(name, measured_on(typed_command(), os.getloadavg()[0]))
            for method in METHODS:
                if method not in results:
                    results[method] = measure(training, tested, method)
                    given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
                    sys.stderr.write(f"{name}, {method}: {results[method]['worst_aside']}\n")
        if results:
            print(table(results))


if __name__ == "__main__":
    main()
