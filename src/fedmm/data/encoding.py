"""Columns of a table as numbers that a network can be given.

What is learnt for it could be learnt from clients that keep their rows: a column's count and sum, then its sum of
squared deviations from the mean, and the set of its words, all of which add up over clients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.checks import flag, positive, within
from fedmm.core.errors import require
from fedmm.data.labels import ordered
from fedmm.data.stored_tables import MISSING, is_numeric, is_plain, numbers, require_columns, texts

if TYPE_CHECKING:
    import pandas

Numbers = NDArray[np.float64]
_FARTHEST = 1e30
"""Deviations from the mean; float32 ends at 3e38."""


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    levels: the words of a column of categories; there is a number for each, and one more for any other word and for
        none. A column of numbers has no levels.
    mean, deviation: of a column of numbers, which becomes (value - mean) / deviation, and 0 where there is none.
    indicator: whether a second number is 1 where there is none.
    """

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    indicator: bool = False
    levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        words = all(isinstance(word, str) for word in (self.name, *self.levels))
        require(words, f"a column's name and levels must be words, not {self.name!r:.60}")
        within("mean", self.mean, -math.inf, math.inf)
        positive("deviation", self.deviation)
        flag("indicator", self.indicator)

    @property
    def width(self) -> int:
        """How many numbers of a row it becomes."""
        return len(self.levels) + 1 if self.levels else 1 + self.indicator

    def encoded(self, column: pandas.Series, what: str) -> NDArray[np.float32]:
        """``[rows, width]``."""
        if self.levels:
            place = {level: number for number, level in enumerate(self.levels)}
            which = [place.get(text, len(self.levels)) for text in texts(column)]
            return np.eye(self.width, dtype=np.float32)[which]
        found = numbers(column, what)
        missing = np.isnan(found)
        scaled = np.where(missing, 0.0, (found - self.mean) / self.deviation)
        far = np.flatnonzero(np.abs(scaled) > _FARTHEST)
        require(not len(far), f"{what} holds a number in row {far[0] + 1 if len(far) else ''} that is far too large")
        columns = [scaled, missing] if self.indicator else [scaled]
        return np.stack(columns, axis=1).astype(np.float32)


def encoded(frame: pandas.DataFrame, columns: Sequence[Column], path: Path) -> Tensor:
    """The rows of a table as numbers, float32 ``[rows, numbers]``."""
    require_columns(frame, (column.name for column in columns), path, "which the model was trained on")
    parts = [column.encoded(frame[column.name], f"{path}: column {column.name!r}") for column in columns]
    return torch.from_numpy(np.concatenate(parts, axis=1))


def learnt(
    frame: pandas.DataFrame,
    *,
    numeric: Collection[str] = (),
    categorical: Collection[str] = (),
    most_levels: int,
    path: Path,
) -> tuple[Column, ...]:
    """How the columns of a table become numbers, from its rows; those that say the same in every row are left out.

    numeric, categorical: columns whose kind is not to be guessed.
    """
    found = []
    for name in frame.columns:
        column, what = frame[name], f"{path}: column {name!r}"
        require(
            is_plain(column),
            f"{what} holds dates, times or lists; turn them into numbers or words, or name the column in data.drop",
        )
        if name in numeric or (name not in categorical and is_numeric(column)):
            each = _numeric(name, numbers(column, what), what)
        else:
            each = _categorical(name, texts(column), what, most_levels)
        if each is not None:
            found.append(each)
    require(bool(found), f"{path} has no column to learn from: every one that is left says the same in all rows")
    return tuple(found)


def _numeric(name: str, values: Numbers, what: str) -> Column | None:
    missing = bool(np.isnan(values).any())
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(known.sum() / len(known))
        deviation = float(np.sqrt(np.square(known - mean).sum() / len(known)))
    require(np.isfinite(deviation), f"{what} holds numbers that are too large to be standardised; make them smaller")
    if not deviation > 1e-12 * max(1.0, abs(mean)):
        return Column(name, mean, 1.0, missing) if missing else None
    return Column(name, mean, deviation, missing)


def _categorical(name: str, written: Sequence[str], what: str, most_levels: int) -> Column | None:
    levels = ordered(text for text in written if text not in MISSING)
    require(
        len(levels) <= most_levels,
        f"{what} holds {len(levels)} different words, such as {levels[0] if levels else '':.40}, more than most_levels "
        f"= {most_levels}; name it in data.drop, or as data.id if it names the rows, or raise data.most_levels",
    )
    same = len(levels) + any(text in MISSING for text in written) < 2
    return None if not levels or same else Column(name, levels=levels)
