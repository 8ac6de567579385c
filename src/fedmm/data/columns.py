"""Encode the columns of a table as numbers for a network.

The encoding could be learnt from clients that keep their rows: it takes a column's count and sum, then its sum of
squared deviations from the mean, and its set of words, which all add up over clients; medians and quartiles
(``robust``) do not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.validation import flag, one_of, positive, within
from fedmm.data.labels import sort_names
from fedmm.data.readers.table_formats import MISSING
from fedmm.data.readers.tables import as_days, is_dates, is_numeric, is_plain, numbers, require_columns, texts

if TYPE_CHECKING:
    import pandas

Numbers = NDArray[np.float64]
Scaling = Literal["standard", "robust", "per_site", "none"]
Scale = tuple[float, float]
"""A mean and a deviation, or a median and a scaled quartile range in their place."""
SiteScaling = Literal["standard", "robust", "per_site", "fixed", "none"]
BINS = 64
"""Histogram bins over an agreed range, for quartiles."""
FIELDS = 6
"""Numbers by which a site describes a column, besides its histogram."""
_FARTHEST = 1e30
"""Limit of scaled values; float32 overflows at 3e38."""
_NORMAL_QUARTILES = 1.3489795003921634
"""Interquartile range of a normal distribution, in standard deviations."""
_FEWEST_TEXTS, _WORDS_OF_TEXT = 20, 3


class Standardiser(NamedTuple):
    """Mean and deviation of each number of a row, or of each channel of a picture: float64 ``[1, numbers, ...]``."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def fit(cls, chunks: Sequence[Tensor], same: float) -> Standardiser:
        """Fit to rows ``[rows, numbers]`` or ``[rows, channels, ...]``; constant numbers are only centred.

        same: numbers count as constant if their deviation is at most ``same`` times the absolute mean, or times 1 if
        larger.
        """
        if not chunks:
            return cls(torch.zeros(()), torch.ones(()))
        over = [axis for axis in range(chunks[0].dim()) if axis != 1]
        count = sum(chunk.numel() for chunk in chunks) // chunks[0].shape[1]
        mean = sum((chunk.double().sum(dim=over, keepdim=True) for chunk in chunks), torch.zeros(())) / count
        squares = ((chunk.double() - mean).square().sum(dim=over, keepdim=True) for chunk in chunks)
        deviation = (sum(squares, torch.zeros(())) / count).sqrt()
        return cls(mean, torch.where(deviation <= same * mean.abs().clamp_min(1.0), 1.0, deviation))

    def __call__(self, x: Tensor) -> Tensor:
        """Return standardised rows, float32."""
        return ((x.double() - self.mean) / self.deviation).float()


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    levels: the words of a categorical column; each gets a number, and so do all other words and missing values
    together. A column of numbers has no levels.
    mean, deviation: of a column of numbers; a value becomes (value - mean) / deviation, a missing one 0.
    indicator: whether a second number is 1 if the value is missing.
    date: the format of a column of dates, such as ``%d.%m.%Y``; they become days since 1970, scaled like other numbers.
    """

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    indicator: bool = False
    levels: tuple[str, ...] = ()
    date: str = ""

    def __post_init__(self) -> None:
        words = all(isinstance(word, str) for word in (self.name, self.date, *self.levels))
        require(words, f"a column's name and levels must be words, not {self.name!r:.60}")
        within("mean", self.mean, -math.inf, math.inf)
        positive("deviation", self.deviation)
        flag("indicator", self.indicator)

    @property
    def width(self) -> int:
        """How many numbers of a row the column takes."""
        return len(self.levels) + 1 if self.levels else 1 + self.indicator

    @property
    def headings(self) -> tuple[str, ...]:
        """The name of each of its numbers."""
        if self.levels:
            return (*(f"{self.name}={level}" for level in self.levels), f"{self.name}=other")
        return (self.name, f"{self.name} missing") if self.indicator else (self.name,)

    def values(self, column: pandas.Series, what: str, decimal: str = ".") -> Numbers:
        """Return the unscaled numbers of a column without levels, ``[rows]``, NaN if missing."""
        return as_days(column, self.date, what) if self.date else numbers(column, what, decimal)

    def encode(self, column: pandas.Series, what: str, decimal: str = ".") -> NDArray[np.float32]:
        """Encode the column as float32 ``[rows, width]``."""
        if self.levels:
            place = {level: number for number, level in enumerate(self.levels)}
            which = [place.get(text, len(self.levels)) for text in texts(column)]
            return np.eye(self.width, dtype=np.float32)[which]
        values = self.values(column, what, decimal)
        missing = np.isnan(values)
        scaled = np.where(missing, 0.0, (values - self.mean) / self.deviation)
        far = np.flatnonzero(np.abs(scaled) > _FARTHEST)
        require(not len(far), f"{what} holds a number in row {far[0] + 1 if len(far) else ''} that is far too large")
        columns = [scaled, missing] if self.indicator else [scaled]
        return np.stack(columns, axis=1).astype(np.float32)


@dataclass(frozen=True)
class AgreedColumns:
    """The columns of a federation's tables, in encoding order.

    categories: the words of each categorical column; all other columns hold numbers, or dates of the given format.
    ranges: a column's smallest and largest number. scaling: of numeric columns.
    """

    names: tuple[str, ...]
    categories: Mapping[str, Sequence[str]]
    dates: Mapping[str, str]
    ranges: Mapping[str, Sequence[float]]
    scaling: SiteScaling = "standard"

    def __post_init__(self) -> None:
        require(len(set(self.names)) == len(self.names), "features must name every column once")
        one_of("scaling", self.scaling, get_args(SiteScaling))
        for option in ("categories", "dates", "ranges"):
            strange = [name for name in getattr(self, option) if name not in self.names]
            require(not strange, f"{option} names the column {strange[:1]}, which is not in features")
        for name, words in self.categories.items():
            require(
                len(words) > 0 and len(set(words)) == len(words) and not set(words) & set(MISSING),
                f"categories must list the words of column {name!r}, each once, without words that stand for missing "
                "values",
            )
            require(
                name not in self.dates and name not in self.ranges,
                f"column {name!r} has categories, so it cannot also have dates or ranges",
            )
        for name, ends in self.ranges.items():
            low, high = ends
            right = math.isfinite(low) and math.isfinite(high) and low < high
            require(right, f"ranges must give column {name!r} two numbers, the smaller first, not {list(ends)}")
        lacking = [name for name in self.numbers if name not in self.ranges]
        require(
            self.scaling not in ("fixed", "robust") or not lacking,
            f"scaling = {self.scaling!r} needs ranges for all numeric columns; {lacking[:1]} is missing",
        )

    @property
    def numbers(self) -> list[str]:
        """The columns of numbers and dates."""
        return [name for name in self.names if name not in self.categories]

    @property
    def learns(self) -> bool:
        """Whether the encoding depends on the sites' rows."""
        return self.scaling != "fixed"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the array that describes a table."""
        return len(self.names), FIELDS + (BINS + 1 if self.scaling == "robust" else 0)

    def column(self, name: str) -> Column:
        """Return a column as it is read, unscaled."""
        return Column(name, levels=tuple(self.categories.get(name, ())), date=self.dates.get(name, ""))

    def fixed(self) -> tuple[Column, ...]:
        """Return the encoding by ranges alone: every range becomes [-1, 1], every numeric column has an indicator."""
        columns = []
        for name in self.names:
            if name in self.categories:
                columns.append(self.column(name))
                continue
            low, high = self.ranges[name]
            columns.append(Column(name, (low + high) / 2, (high - low) / 2, True, date=self.dates.get(name, "")))
        return tuple(columns)


def encode_columns(frame: pandas.DataFrame, columns: Sequence[Column], path: Path | str, decimal: str = ".") -> Tensor:
    """Encode the rows of a table as float32 ``[rows, numbers]``."""
    require_columns(frame, (column.name for column in columns), path, "which the model was trained on")
    parts = [column.encode(frame[column.name], f"{path}: column {column.name!r}", decimal) for column in columns]
    return torch.from_numpy(np.concatenate(parts, axis=1))


def learn_columns(
    frame: pandas.DataFrame,
    *,
    numeric: Collection[str] = (),
    categorical: Collection[str] = (),
    dates: Mapping[str, str] | None = None,
    scaling: Scaling = "standard",
    decimal: str = ".",
    most_levels: int,
    path: Path | str,
) -> tuple[Column, ...]:
    """Learn how each column becomes numbers from a table's rows; drop columns that are empty or constant.

    numeric, categorical: columns whose kind is not to be guessed. dates: the format of each column of dates.
    """
    columns = []
    for name in frame.columns:
        column, what = frame[name], f"{path}: column {name!r}"
        date = (dates or {}).get(name, "")
        require(
            is_plain(column) or (bool(date) and is_dates(column)),
            f"{what} holds dates, times or lists; turn them into numbers or words, or name the column in data.drop, or "
            "in data.dates if it holds dates",
        )
        if date:
            learnt = _numeric(name, as_days(column, date, what), what, scaling, date)
        elif name in numeric or (name not in categorical and is_numeric(column, decimal)):
            learnt = _numeric(name, numbers(column, what, decimal), what, scaling)
        else:
            learnt = _categorical(name, texts(column), what, most_levels, chosen=name in categorical)
        if learnt is not None:
            columns.append(learnt)
    require(bool(columns), f"{path} has no column to learn from: every remaining column is empty or constant")
    return tuple(columns)


def scales_of(
    frame: pandas.DataFrame, columns: Sequence[Column], path: Path | str, decimal: str = "."
) -> tuple[Scale, ...]:
    """Return each column's mean and deviation in some rows; empty columns keep both, constant ones the deviation."""
    scales = []
    for column in columns:
        scale = (column.mean, column.deviation)
        if not column.levels:
            what = f"{path}: column {column.name!r}"
            values = column.values(frame[column.name], what, decimal)
            known = values[~np.isnan(values)]
            if len(known):
                mean, deviation = _scale(known, "standard", what)
                scale = (mean, deviation if deviation is not None else column.deviation)
        scales.append(scale)
    return tuple(scales)


def rescale(columns: Sequence[Column], scales: Sequence[Scale]) -> tuple[Column, ...]:
    """Return the columns with other means and deviations."""
    return tuple(
        replace(column, mean=mean, deviation=deviation)
        for column, (mean, deviation) in zip(columns, scales, strict=True)
    )


def _numeric(name: str, values: Numbers, what: str, scaling: Scaling, date: str = "") -> Column | None:
    missing = bool(np.isnan(values).any())
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    mean, deviation = _scale(known, scaling, what)
    return numeric_column(name, mean, deviation, missing=missing, date=date)


def numeric_column(name: str, mean: float, deviation: float | None, *, missing: bool, date: str = "") -> Column | None:
    """Return a column of numbers; None if it is constant without missing values, so that it carries no information.

    deviation: None if all numbers are the same. missing: whether some row has no number.
    """
    if deviation is None:
        return Column(name, mean, 1.0, missing, date=date) if missing else None
    return Column(name, mean, deviation, missing, date=date)


def _scale(known: Numbers, scaling: Scaling, what: str) -> tuple[float, float | None]:
    """Return a column's shift and divisor; the divisor is None if all numbers are the same."""
    total, squares = sums_of(known)
    mean, deviation = total / len(known), deviation_of(total, squares, len(known), what)
    if deviation is None:
        return mean, None
    if scaling == "none":
        return 0.0, 1.0
    if scaling == "robust":
        low, middle, high = (float(quantile) for quantile in np.quantile(known, (0.25, 0.5, 0.75)))
        return robust_scale(low, middle, high, deviation)
    return mean, deviation


def sums_of(known: Numbers) -> tuple[float, float]:
    """Return the numbers' sum and their sum of squared deviations from the mean."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(known.sum())
        return total, float(np.square(known - total / len(known)).sum())


def deviation_of(total: float, squares: float, count: int, what: str) -> float | None:
    """Return the standard deviation of numbers with these sums; None if all are the same."""
    deviation = float(np.sqrt(squares / count))
    require(np.isfinite(deviation), f"{what} holds numbers that are too large to be standardised; make them smaller")
    return deviation if deviation > 1e-12 * max(1.0, abs(total / count)) else None


def robust_scale(low: float, middle: float, high: float, deviation: float) -> Scale:
    """Return the scale of numbers with these quartiles; the deviation replaces a quartile range of 0."""
    return middle, (high - low) / _NORMAL_QUARTILES if high > low else deviation


def is_free_text(written: Sequence[str]) -> bool:
    """Return whether a column holds mostly distinct sentences rather than categories."""
    given = [text for text in written if text not in MISSING]
    words = sum(len(text.split()) for text in given)
    return len(given) >= _FEWEST_TEXTS and len(set(given)) > len(given) / 2 and words >= _WORDS_OF_TEXT * len(given)


def _categorical(name: str, written: Sequence[str], what: str, most_levels: int, *, chosen: bool) -> Column | None:
    require(
        chosen or not is_free_text(written),
        f"{what} holds free text, which cannot be learnt from; name it in data.drop, or in data.categorical if each "
        "text is a category",
    )
    levels = sort_names(text for text in written if text not in MISSING)
    require(
        len(levels) <= most_levels,
        f"{what} holds {len(levels)} different words, such as {levels[0] if levels else '':.40}, more than most_levels "
        f"= {most_levels}; name it in data.drop, or as data.id if it names the rows, or raise data.most_levels",
    )
    same = len(levels) + any(text in MISSING for text in written) < 2
    return None if not levels or same else Column(name, levels=levels)
