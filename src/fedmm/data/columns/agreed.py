"""What the sites of a federation agree on about the columns of their tables, before anything of them is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedmm.core.errors import require
from fedmm.core.validation import one_of
from fedmm.data.columns.encoding import Column
from fedmm.data.readers.cells import MISSING

SiteScaling = Literal["standard", "robust", "per_site", "fixed", "none"]
BINS = 64
"""Of an agreed range, for quartiles."""
FIELDS = 6
"""Numbers by which a site describes a column, beside counts for quartiles."""


@dataclass(frozen=True)
class AgreedColumns:
    """The columns of a federation's tables, in the order in which they become numbers.

    categories: the words of the columns that hold words; all others hold numbers, or dates of the given form.
    ranges: the least and the largest number of a column. scaling: of columns of numbers.
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
            require(not strange, f"{option} names the column {strange[:1]}, which features does not")
        for name, words in self.categories.items():
            require(
                len(words) > 0 and len(set(words)) == len(words) and not set(words) & set(MISSING),
                f"categories must list the words of column {name!r}, each once, and none that stands for nothing",
            )
            require(name not in self.dates and name not in self.ranges, f"column {name!r} holds categories or numbers")
        for name, ends in self.ranges.items():
            low, high = ends
            right = math.isfinite(low) and math.isfinite(high) and low < high
            require(right, f"ranges must give column {name!r} two numbers, the smaller first, not {list(ends)}")
        lacking = [name for name in self.numbers if name not in self.ranges]
        require(
            self.scaling not in ("fixed", "robust") or not lacking,
            f"ranges must have all columns of numbers for scaling = {self.scaling!r}; {lacking[:1]} is not there",
        )

    @property
    def numbers(self) -> list[str]:
        """The columns of numbers and dates."""
        return [name for name in self.names if name not in self.categories]

    @property
    def learns(self) -> bool:
        """Whether numbers that come of the sites' rows are in the encoding."""
        return self.scaling != "fixed"

    @property
    def shape(self) -> tuple[int, int]:
        """Of the array that describes a table."""
        return len(self.names), FIELDS + (BINS + 1 if self.scaling == "robust" else 0)

    def column(self, name: str) -> Column:
        """A column as it is read, before it is scaled."""
        return Column(name, levels=tuple(self.categories.get(name, ())), date=self.dates.get(name, ""))

    def fixed(self) -> tuple[Column, ...]:
        """The encoding by ranges alone: from -1 to 1 over each column's range, and always a number for missing ones."""
        found = []
        for name in self.names:
            if name in self.categories:
                found.append(self.column(name))
                continue
            low, high = self.ranges[name]
            found.append(Column(name, (low + high) / 2, (high - low) / 2, True, date=self.dates.get(name, "")))
        return tuple(found)
