"""Adversarial debiasing: DANN with a sensitive column as the domain, on UCI Adult.

    FEDMM_ADULT=... python benchmarks/debias.py
    python benchmarks/debias.py table

Source: all labelled rows of a site. Target: its rows of one group, without labels. The source's features are then
distributed as p P_0 + (1 - p) P_1 and the target's as P_1. These are equal if and only if P_0 = P_1, so if an optimal
adversary cannot separate the domains, the features carry no information about the group. Two sites hold half of
adult.data each; the column itself is not an input. Nothing was selected by its results: every nu is shown, tested on
adult.test. To save time, rounds were cut from 200 to 100 and nu = 0.3 was dropped, after seeing source only at 200
rounds (a parity gap of 17.3 %) but no DANN run. A seed determines the split into sites, initial weights and batches.

Intervals: 95 % bootstrap intervals, 1000 draws of seeds and test rows. Results go to benchmarks/results/debias.json.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import measured_on, run_or_table, typed_command
from numpy.typing import NDArray
from people import read_adult
from torch import nn

import fedmm
from fedmm.core.objective import Objective

RESULTS = Path(__file__).parent / "results" / "debias.json"
COLUMNS = ("workclass", "marital", "race", "sex", "country")
ROUNDS, SEEDS, DRAWS = 100, tuple(range(5)), 1000
METHODS: Mapping[str, Objective] = {
    "source only": fedmm.SourceOnly(),
    **{f"DANN, nu = {nu:g}": fedmm.DANN(nu=nu) for nu in (1.0, 3.0, 10.0)},
}
MEASURES = ("accuracy", "parity", "odds")
Part = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]


def read_parts(folder: Path, column: str) -> tuple[Part, Part]:
    """Return training and test rows: standardised inputs without the column, labels, membership of its second group.

    The second group has the rarer of the column's two most frequent values; rows with other values are left out.
    """
    people = read_adult(folder)
    values, counts = np.unique(people.words[column][~people.tested], return_counts=True)
    if len(values) < 2:
        fail(f"the column {column!r} has one value, {str(values[0])!r}: there is no other group to compare it with")
    frequent = values[np.argsort(-counts)[:2]]
    people = people.rows(np.isin(people.words[column], frequent))
    x, second = people.inputs(without=column), people.words[column] == frequent[1]
    training, tested = ((x[part], people.y[part], second[part]) for part in (~people.tested, people.tested))
    return training, tested


def predictions(rows: Part, tested: Part, objective: Objective, seed: int) -> NDArray[np.int64]:
    """Return the predicted classes of the test rows after training on ``rows``."""
    x, y, group = rows
    order = np.random.default_rng(seed).permutation(len(y))
    clients = [
        fedmm.Client(source=(x[own], y[own]), target=x[own][group[own]], name=f"site-{number}")
        for number, own in enumerate(np.array_split(order, 2), start=1)
    ]
    torch.manual_seed(seed)
    network = fedmm.Network(nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU()), classes=2)
    algorithm = fedmm.FedMM(0.05, 0.05, local_steps=10)
    adapted = fedmm.adapt(
        clients, network, objective, algorithm, ROUNDS,
        evaluate_every=ROUNDS, batch_size=128, probe_rows=0, seed=seed, best_by="", progress=False,
    )  # fmt: skip
    return np.asarray(adapted.predict(tested[0]))


def measures(predicted: NDArray[np.int64], y: NDArray[np.int64], group: NDArray[np.bool_]) -> dict[str, float]:
    """Return accuracy, the groups' gap in the rate of predicting 1, and the larger such gap within class 1 or 0."""

    def gap(chosen: NDArray[np.bool_]) -> float:
        return abs(float(predicted[chosen & group].mean()) - float(predicted[chosen & ~group].mean()))

    return {
        "accuracy": float((predicted == y).mean()),
        "parity": gap(np.ones_like(group)),
        "odds": max(gap(y == 1), gap(y == 0)),
    }


def measure(objective: Objective, rows: Part, tested: Part) -> dict[str, Any]:
    """Return each measure's mean over seeds, its interval, and its value for every seed."""
    _, y, group = tested
    found = np.stack([predictions(rows, tested, objective, seed) for seed in SEEDS])
    by_seed = [measures(each, y, group) for each in found]
    random = np.random.default_rng(0)
    draws = []
    for _ in range(DRAWS):
        chosen = random.integers(0, len(y), len(y))
        each = [
            measures(found[seed][chosen], y[chosen], group[chosen]) for seed in random.choice(len(SEEDS), len(SEEDS))
        ]
        draws.append([np.mean([one[name] for one in each]) for name in MEASURES])
    low, high = np.quantile(np.array(draws), [0.025, 0.975], axis=0)
    return {
        name: {
            "mean": float(np.mean([one[name] for one in by_seed])),
            "interval": [float(low[place]), float(high[place])],
            "by_seed": [one[name] for one in by_seed],
        }
        for place, name in enumerate(MEASURES)
    }


def table(results: Mapping[str, Any]) -> str:
    """Return a Markdown table of means over seeds and intervals, in per cent."""
    lines = ["| method | accuracy | parity gap | odds gap |", "|---|---|---|---|"]
    for method, found in results.items():
        cells = [
            f"{found[name]['mean']:.1%} ({found[name]['interval'][0]:.1%} to {found[name]['interval'][1]:.1%})"
            for name in MEASURES
        ]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def fail(sentence: str) -> None:
    """Print the error and exit."""
    sys.stderr.write(f"{sentence}\n")
    raise SystemExit(2)


def main() -> None:
    parser = run_or_table(__doc__, RESULTS)
    parser.add_argument("--column", choices=COLUMNS, default="sex", help="the sensitive column")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    if given.action == "run":
        if "FEDMM_ADULT" not in os.environ:
            fail("FEDMM_ADULT must name the folder with adult.data and adult.test")
        rows, tested = read_parts(Path(os.environ["FEDMM_ADULT"]), given.column)
        kept.setdefault("measured", measured_on(typed_command(), os.getloadavg()[0]))
        results = kept.setdefault(given.column, {})
        for method, objective in METHODS.items():
            if method not in results:
                results[method] = measure(objective, rows, tested)
                given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
                sys.stderr.write(f"{method}: {results[method]['parity']['mean']:.3f}\n")
    print(table(kept[given.column]))


if __name__ == "__main__":
    main()
