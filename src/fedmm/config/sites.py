"""Experiments whose rows stay at the sites: ``[data] name = "sites"``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch

from fedmm.config.dataclass_io import build
from fedmm.config.schema import Experiment, experiment
from fedmm.core.errors import require, unknown
from fedmm.core.files import DOMAINS, TableKeys
from fedmm.core.problem import View, WholeRows
from fedmm.core.validation import at_least
from fedmm.data.columns import AgreedColumns, Column, Scale, SiteScaling
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.inputs import TableInput
from fedmm.data.readers.table_formats import TableFormat
from fedmm.data.transforms import CropAndFlip

ELSEWHERE = "sites"
_STAND_IN = "moons"


@dataclass(frozen=True)
class _SiteKeys:
    """What the sites hold: the first keys of :class:`RowsElsewhere`."""

    sites: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    bytes: bool = False
    image_size: int = 0
    domains: Mapping[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    scaling: SiteScaling = "standard"
    lacking: Literal["refuse", "missing"] = "refuse"
    label: str = ""
    class_of: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RowsElsewhere(TableKeys, _SiteKeys):
    """Rows that stay at the sites.

    sites: their names. classes: the names of all classes, in the order of their labels. shape: of a stored row; none
        for tables. bytes: whether rows are stored as bytes. image_size: images are cropped to this size and flipped in
        training; 0 for rows as they are. domains: by site, what it holds: ``source``, ``target`` or ``both``; a site
        that holds something else is refused, and a run may begin without a site whose domains are given here.

    Tables: features: the columns to learn from, in the order in which they become numbers. categories: the values of
        categorical columns. dates: the formats of date columns. ranges: the smallest and the largest number of a
        column. scaling: ``standard``, ``robust`` (by quartiles within ranges) and ``per_site`` are learnt from sums
        that sites send; ``fixed`` uses ranges only; ``none``. lacking: whether a site without a column is refused, or
        all of its rows have a missing value there.
    label, class_of and the others: the format of files to predict for, as in :class:`Table`; sites have their own.
    """

    name: ClassVar[str] = ELSEWHERE
    summary: ClassVar[str] = "rows that only the sites have"

    sheet: ClassVar[str] = ""  # type: ignore[misc] # not a key: files to predict for have one sheet

    def __post_init__(self) -> None:
        require(len(self.sites) > 0, "sites must name the sites of the federation")
        require(len(set(self.sites)) == len(self.sites), "sites must name every site once")
        require(len(self.classes) >= 2, "classes must name at least two classes")
        at_least("image_size", self.image_size, 0)
        for site, domain in self.domains.items():
            if site not in self.sites:
                raise unknown("site in domains", site, self.sites)
            require(domain in DOMAINS, f"domains.{site} must be one of {', '.join(DOMAINS)}, not {domain!r}")
        if self.features:
            require(
                not self.shape and not self.bytes and not self.image_size,
                "shape, bytes and image_size are not for tables, whose features determine a row's shape",
            )
            _ = self.agreed  # refuses invalid columns
            require(
                self.label not in self.features, f"features names the label column, {self.label!r}; remove it there"
            )
            strange = sorted(set(self.class_of.values()) - set(self.classes))
            require(not strange, f"class_of names the class {strange[:1]}, which is not in classes")
            return
        require(
            len(self.shape) > 0 and min(self.shape) >= 1, f"shape must be that of a stored row, not {list(self.shape)}"
        )
        given = [name for name in ("categories", "dates", "ranges") if getattr(self, name)]
        require(not given, f"{given[0] if given else ''} is only for tables; list their columns in features")

    @cached_property
    def agreed(self) -> AgreedColumns:
        """The columns of the sites' tables."""
        return AgreedColumns(self.features, self.categories, self.dates, self.ranges, self.scaling)

    @property
    def labelled_only(self) -> bool:
        """Whether ``domains`` says that every site holds only labelled rows."""
        return all(self.domains.get(site) == "source" for site in self.sites)

    @property
    def view(self) -> View:
        """How the network sees stored rows."""
        return CropAndFlip(self.image_size) if self.image_size else WholeRows()

    def table_input(self, columns: tuple[Column, ...], scales: Mapping[str, tuple[Scale, ...]]) -> TableInput:
        """Return how a table like those of the sites becomes rows."""
        return TableInput(
            self.classes,
            columns,
            self.label,
            **asdict(TableFormat.of(self)),
            classes=dict(self.class_of),
            scales=scales,
            fixed=not self.agreed.learns,
        )

    def load(self) -> DomainPair:
        """Return an empty pair of domains with rows of the right shape."""
        return self._no_rows(self.shape, None)

    def encoded(self, how: TableInput) -> EncodedElsewhere:
        """Return this data set with tables encoded by ``how``."""
        return EncodedElsewhere(self._no_rows((len(how.headings),), how))

    def _no_rows(self, shape: tuple[int, ...], how: TableInput | None) -> DomainPair:
        none = Labelled(
            torch.empty(0, *shape, dtype=torch.uint8 if self.bytes else torch.float32),
            torch.empty(0, dtype=torch.int64),
        )
        return DomainPair(none, none, none, none, self.classes, view=self.view, input=how)


@dataclass(frozen=True)
class EncodedElsewhere:
    """Tables that stay at the sites, together with their encoding as rows."""

    name: ClassVar[str] = ELSEWHERE
    summary: ClassVar[str] = RowsElsewhere.summary

    pair: DomainPair

    def load(self) -> DomainPair:
        return self.pair


def experiment_anywhere(tables: Mapping[str, Any]) -> Experiment:
    """Build the experiment of a file, whose rows may stay at sites."""
    here, data = with_stand_in(tables), tables.get("data", {})
    if here is tables:
        return experiment(tables)
    rows = build(RowsElsewhere, {key: value for key, value in data.items() if key != "name"}, "data")
    return replace(experiment(here), data=rows)


def with_stand_in(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tables with a built-in data set in place of rows at sites, for code that reads only other sections."""
    data = tables.get("data", {})
    elsewhere = isinstance(data, Mapping) and data.get("name") == ELSEWHERE
    return {**tables, "data": {"name": _STAND_IN}} if elsewhere else tables
