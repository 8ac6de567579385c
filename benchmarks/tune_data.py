"""The data sets of benchmarks/tune.py as experiments, grouped by their role in finding the rule."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from label_shift import HOSPITALS, Arrays, arrays_of, cancer, heart
from numpy.typing import NDArray
from people import People, read_compas, read_german

from fedmm.config.toml import read_tables

PAPER = Path(__file__).parents[1] / "paper"
RATES = {"name": "fedmm_restrained", "lr_min": 0.02, "lr_max": 0.02, "local_steps": 5}
"""The algorithm as given, except on MNIST-M and Office-31."""
ALGORITHMS = ["fedmm_restrained", "fedmm_smoothed", "fedmm", "fedavg_gda"]
"""The candidates on MNIST-M and Office-31, where runs are expensive."""
ADULT_ROWS, USPS_ROWS, TEST_ROWS = 3000, 2000, 1000
"""Training rows of each domain of Adult, and of MNIST and USPS; test rows of these two."""
_NUMBERS = (0, 4, 10, 11, 12)
"""Adult's numeric columns: age, years of education, capital gain and loss, hours per week."""
_WORDS = (1, 5, 6, 7, 8, 9)
_GOVERNMENT = ("Federal-gov", "State-gov", "Local-gov")

Choose = Callable[[People], tuple[str, NDArray[np.bool_]]]
"""From people to the column that reveals who is chosen (left out of the inputs), and who is chosen."""
Tables = dict[str, Any]
Make = Callable[[Path], Tables]
"""From a folder for files to an experiment."""


def _moons(angle: float, folder: Path) -> Tables:
    return {
        "run": {"batch_size": 32},
        "data": {"name": "moons", "angle": angle, "validation_rows": 200},
        "model": {"name": "mlp", "hidden": [32, 32], "adversary_hidden": [32]},
    }


def _digits(angle: float, folder: Path) -> Tables:
    return {
        "run": {"batch_size": 32},
        "data": {"name": "digits", "kind": "turned", "angle": angle, "validation_rows": 200},
        "model": {"name": "mlp", "hidden": [64], "adversary_hidden": [32]},
    }


def _blended(seed: int, folder: Path) -> Tables:
    return {
        "run": {"batch_size": 32},
        "data": {"name": "digits", "kind": "blended", "size": 12, "copies": 1, "seed": seed, "validation_rows": 200},
        "model": {"name": "mlp", "hidden": [64], "adversary_hidden": [32]},
    }


def _usps(source: str, target: str, folder: Path) -> Tables:
    rows = {"image_size": 16, "train_rows": USPS_ROWS, "test_rows": TEST_ROWS}
    return {
        "run": {"batch_size": 32},
        "data": {"name": "usps", "source": source, "target": target, **rows},
        "model": {"name": "mlp", "hidden": [64], "adversary_hidden": [32]},
    }


def _cancer(mix: tuple[float, float], folder: Path) -> Tables:
    return arrays_of(folder / "cancer.npz", cancer(mix), 0)


def _heart(target: str, folder: Path) -> Tables:
    return arrays_of(folder / "heart.npz", heart(Path(os.environ["FEDMM_DATA"]) / "heart", target), 0)


def _adult(target: str, folder: Path) -> Tables:
    tables = arrays_of(folder / "adult.npz", adult(Path(os.environ["FEDMM_ADULT"]) / "adult.data", target), 0)
    return {**tables, "partition": {"name": "source_target"}}


def adult(file: Path, target: str) -> Arrays:
    """Read UCI Adult: from private to government employees (target ``government``), or from men to women."""
    with file.open(encoding="utf-8") as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines) if len(row) == 15]
    words = {word: sorted({row[word] for row in rows}) for word in _WORDS}
    if target == "government":
        column, values = 1, {"source": ("Private",), "target": _GOVERNMENT}
        del words[1]
    else:
        column, values = 9, {"source": ("Male",), "target": ("Female",)}
        del words[9], words[7]  # "husband" and "wife" also reveal it
    found: Arrays = {}
    for name, belonging in values.items():
        own = [row for row in rows if row[column] in belonging]
        chosen = [own[i] for i in np.random.default_rng(0).permutation(len(own))[:ADULT_ROWS]]
        numbers = np.array([[np.log1p(float(row[number])) for number in _NUMBERS] for row in chosen])
        flags = np.array([[row[c] == word for c, known in words.items() for word in known] for row in chosen])
        found[f"{name}_x"] = np.concatenate([numbers, flags], axis=1).astype(np.float32)
        found[f"{name}_y"] = np.array([int(row[14].startswith(">50K")) for row in chosen])
    return found


def _people(read: Callable[[Path], People], variable: str, source: Choose, target: Choose, folder: Path) -> Tables:
    """Return the experiment from some people to others, a site each, without the column that tells them apart."""
    people = read(Path(os.environ[variable]))
    found: Arrays = {}
    for name, (column, chosen) in (("source", source(people)), ("target", target(people))):
        found |= {f"{name}_x": people.inputs(column)[chosen], f"{name}_y": people.y[chosen]}
    tables = arrays_of(folder / "people.npz", found, 0)
    return {**tables, "partition": {"name": "source_target"}}


def _mixed(angle: float, share: float, folder: Path) -> Tables:
    """Return two moons with a rotated target that has this share of its rows on the lower moon."""
    from sklearn.datasets import make_moons  # noqa: PLC0415 - slow to import

    turn = np.radians(angle)
    rotate = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    found: Arrays = {}
    for seed, name, lower in ((1, "source", 500), (2, "target", round(1000 * share))):
        x, y = make_moons((1000 - lower, lower), noise=0.1, random_state=seed)
        x = x - np.array([0.5, 0.25])
        found |= {f"{name}_x": (x @ rotate if name == "target" else x).astype(np.float32), f"{name}_y": y}
    tables = arrays_of(folder / "moons.npz", found, 0)
    return {**tables, "partition": {"name": "source_target"}}


def _rare_digits(angle: float, folder: Path) -> Tables:
    """Return digits with a rotated target that keeps about a quarter of its rows of classes 5 to 9."""
    from scipy.ndimage import rotate  # noqa: PLC0415 - slow to import
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import

    digits = load_digits()
    halves = np.array_split(np.random.default_rng(0).permutation(len(digits.target)), 2)
    kept = halves[1][(digits.target[halves[1]] < 5) | (np.random.default_rng(1).random(len(halves[1])) < 0.25)]
    found: Arrays = {}
    for name, rows in (("source", halves[0]), ("target", kept)):
        x = digits.images[rows] / 16
        x = rotate(x, angle, axes=(2, 1), reshape=False, order=1) if name == "target" else x
        found |= {f"{name}_x": x.reshape(len(x), -1).astype(np.float32), f"{name}_y": digits.target[rows]}
    tables = arrays_of(folder / "digits.npz", found, 0)
    return {**tables, "partition": {"name": "source_target"}}


def _mnist_m(objective: str, clients: str, folder: Path) -> Tables:
    tables = read_tables(PAPER / "figure_5" / f"{objective}_{clients}" / "fedmm.toml")
    tables.pop("sweep")
    return {
        **tables,
        "run": {**tables["run"], "rounds": 600},
        "algorithm": {"name": "fedmm_restrained", "lr_min": 0.01, "lr_max": 0.01, "local_steps": 20},
        "tune": {"algorithm.name": ALGORITHMS},
    }


def _office31(task: str, folder: Path) -> Tables:
    """Return an Office-31 task on a frozen MobileNetV2's features, as in choose_office31.py; class mixes differ."""
    from choose_office31 import BATCH, BOTTLENECK, STEPS, tasks_of_features  # noqa: PLC0415 - reads 21 MB

    pair = tasks_of_features(Path(os.environ["FEDMM_CACHE"]), "cpu")[task]
    sides = {"source": pair.source, "target": pair.target}
    arrays = {f"{side}_x": rows.x.numpy() for side, rows in sides.items()}
    arrays |= {f"{side}_y": rows.y.numpy() for side, rows in sides.items()}
    tables = arrays_of(folder / "office31.npz", arrays, 200)
    return {
        **tables,
        "run": {"rounds": 200, "batch_size": BATCH},
        "data": {**tables["data"], "standardise": False, "held_out": 0.1},
        "partition": {"name": "source_target"},
        "model": {"name": "mlp", "hidden": [BOTTLENECK], "adversary_hidden": [256]},
        "algorithm": {"name": "fedmm_restrained", "lr_min": 0.05, "lr_max": 0.05, "local_steps": STEPS},
        "tune": {"algorithm.name": ALGORITHMS, "objective.name": ["dann", "cdan", "mdd"]},
    }


def _race(name: str) -> Choose:
    return lambda people: ("race", people.words["race"] == name)


def _sex(name: str) -> Choose:
    return lambda people: ("sex", people.words["sex"] == name)


def _young(*, young: bool) -> Choose:
    return lambda people: ("", (people.numbers["age"] <= 25) == young)


def _is_there(*variables: str) -> bool:
    return all(variable in os.environ for variable in variables)


DEVELOPMENT: Mapping[str, Make] = {
    **{f"moons, {angle} degrees": partial(_moons, float(angle)) for angle in (20, 35, 50)},
    **{f"moons, 30 degrees, 50% to {share:.0%}": partial(_mixed, 30.0, share) for share in (0.2, 0.85)},
    **{f"digits, {angle} degrees": partial(_digits, float(angle)) for angle in (15, 30, 45)},
    "digits, 20 degrees, other mix": partial(_rare_digits, 20.0),
    "breast cancer, 45% to 70%": partial(_cancer, (0.45, 0.70)),
    "breast cancer, 45% to 20%": partial(_cancer, (0.45, 0.20)),
    "breast cancer, same mix": partial(_cancer, (0.45, 0.45)),
}
"""The rule that chooses among finalists was developed with these target labels."""
_OBJECTIVES, _CLIENTS = ("dann", "cdan", "mdd"), ("1s1t", "2s1t", "1s2t")
_TASKS = tuple(f"{source}_{target}" for source, target in permutations("adw", 2))
_HEART = {f"heart, {target}": partial(_heart, target) for target in HOSPITALS}
_ADULT = {f"adult, {target}": partial(_adult, target) for target in ("government", "women")}
_COMPAS = {
    "compas, Caucasian": partial(_people, read_compas, "FEDMM_COMPAS", _race("African-American"), _race("Caucasian")),
    "compas, women": partial(_people, read_compas, "FEDMM_COMPAS", _sex("Male"), _sex("Female")),
}
_GERMAN = {
    "german, 25 or younger": partial(_people, read_german, "FEDMM_GERMAN", _young(young=False), _young(young=True))
}
_USPS = {"MNIST to USPS": partial(_usps, "mnist", "usps"), "USPS to MNIST": partial(_usps, "usps", "mnist")}
_MNIST_M = {
    f"MNIST-M, {objective} {clients}": partial(_mnist_m, objective, clients)
    for objective in _OBJECTIVES
    for clients in _CLIENTS
}
_OFFICE31 = {f"Office-31, {task}": partial(_office31, task) for task in _TASKS}
HELD_OUT: Mapping[str, Make] = {
    **(_HEART if _is_there("FEDMM_DATA") else {}),
    **(_ADULT if _is_there("FEDMM_ADULT") else {}),
    **(_COMPAS if _is_there("FEDMM_COMPAS") else {}),
    **(_GERMAN if _is_there("FEDMM_GERMAN") else {}),
    **(_USPS if _is_there("FEDMM_DATA") else {}),
    **(_MNIST_M if _is_there("FEDMM_DATA") else {}),
    **(_OFFICE31 if _is_there("FEDMM_CACHE") else {}),
}
"""Trained before the rule was fixed, and examined afterwards."""
CONFIRMING: Mapping[str, Make] = {f"digits, blended, {seed}": partial(_blended, seed) for seed in range(4)}
"""Run once, after the rule was changed because of its choices on the held-out data."""
GROUPS = {"confirming": CONFIRMING, "held out": HELD_OUT, "development": DEVELOPMENT}
DATA: Mapping[str, Make] = {**CONFIRMING, **HELD_OUT, **DEVELOPMENT}
SMALL = tuple(
    name
    for name in (
        *(f"moons, {angle} degrees" for angle in (20, 35, 50)),
        *(f"digits, {angle} degrees" for angle in (15, 30, 45)),
        "breast cancer, 45% to 70%", "breast cancer, same mix", *_HEART, *_ADULT, *_USPS,
    )
    if name in DATA
)  # fmt: skip
"""The data sets of benchmarks/defaults.py."""


def tables_of(name: str, folder: Path, rounds: int | None = None) -> Tables:
    """Return the experiment as given on one data set, with its arrays written to a folder. rounds: replaces its own."""
    tables = {"algorithm": RATES, **DATA[name](folder)}
    own = tables["run"].get("rounds") or 150
    return {**tables, "run": {**tables["run"], "rounds": rounds or own}}
