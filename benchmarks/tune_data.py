"""The data sets of benchmarks/tune.py, as experiments: those a rule was developed on, and those it was not."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from label_shift import HOSPITALS, Arrays, arrays_of, cancer, heart

RATES = {"name": "fedmm_smoothed", "lr_min": 0.02, "lr_max": 0.02, "local_steps": 5}
"""Of every experiment as given."""
ADULT_ROWS, USPS_ROWS, TEST_ROWS = 3000, 2000, 1000
"""Of each domain of Adult, of MNIST and USPS, and of these two for testing."""
_NUMBERS = (0, 4, 10, 11, 12)
"""Columns of Adult that are numbers: age, years of education, capital gain and loss, hours a week."""
_WORDS = (1, 5, 6, 7, 8, 9)
_GOVERNMENT = ("Federal-gov", "State-gov", "Local-gov")

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
    """UCI Adult: those employed by a government, or women, as the target; private employees, or men, as the source."""
    with file.open(encoding="utf-8") as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines) if len(row) == 15]
    words = {word: sorted({row[word] for row in rows}) for word in _WORDS}
    if target == "government":
        column, values = 1, {"source": ("Private",), "target": _GOVERNMENT}
        del words[1]
    else:
        column, values = 9, {"source": ("Male",), "target": ("Female",)}
        del words[9], words[7]  # husband and wife tell it too
    found: Arrays = {}
    for name, belonging in values.items():
        own = [row for row in rows if row[column] in belonging]
        chosen = [own[i] for i in np.random.default_rng(0).permutation(len(own))[:ADULT_ROWS]]
        numbers = np.array([[np.log1p(float(row[number])) for number in _NUMBERS] for row in chosen])
        flags = np.array([[row[c] == word for c, known in words.items() for word in known] for row in chosen])
        found[f"{name}_x"] = np.concatenate([numbers, flags], axis=1).astype(np.float32)
        found[f"{name}_y"] = np.array([int(row[14].startswith(">50K")) for row in chosen])
    return found


def _is_there(variable: str) -> bool:
    return variable in os.environ


DEVELOPMENT: Mapping[str, Make] = {
    **{f"moons, {angle} degrees": partial(_moons, float(angle)) for angle in (20, 35, 50)},
    **{f"digits, {angle} degrees": partial(_digits, float(angle)) for angle in (15, 30, 45)},
    "breast cancer, 45% to 70%": partial(_cancer, (0.45, 0.70)),
    "breast cancer, same mix": partial(_cancer, (0.45, 0.45)),
}
"""Target labels of these were looked at to find the rule by which finalists are chosen."""
HELD_OUT: Mapping[str, Make] = {
    **({f"heart, {target}": partial(_heart, target) for target in HOSPITALS} if _is_there("FEDMM_DATA") else {}),
    **({"adult, government": partial(_adult, "government")} if _is_there("FEDMM_ADULT") else {}),
    **({"adult, women": partial(_adult, "women")} if _is_there("FEDMM_ADULT") else {}),
    **({"MNIST to USPS": partial(_usps, "mnist", "usps")} if _is_there("FEDMM_DATA") else {}),
    **({"USPS to MNIST": partial(_usps, "usps", "mnist")} if _is_there("FEDMM_DATA") else {}),
}
"""Run once, after the rule was written down."""


def tables_of(name: str, folder: Path, rounds: int) -> Tables:
    """The experiment as given on one data set; its arrays are written to a folder."""
    tables = (DEVELOPMENT | HELD_OUT)[name](folder)  # type: ignore[operator]
    return {**tables, "run": {**tables["run"], "rounds": rounds, "evaluate_every": 10}, "algorithm": RATES}
