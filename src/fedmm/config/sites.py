"""Experiments whose rows only the sites have: ``[data] name = "sites"``."""

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
    """Rows that only the sites have.

    sites: their names. classes: the names of all classes, in the order of their labels. shape: of a stored row; none
    for tables. bytes: whether rows are stored as bytes. image_size: pictures are cropped to it and flipped in training;
    0 for rows as they are. domains: by site, what it holds: ``source``, ``target`` or ``both``; a site that holds
    something else is refused, and a run may begin without a site of which this is known.

    Tables: features: the columns that are learnt from, in the order in which they become numbers. categories: the words
    of those that hold words. dates: the form of those that hold dates. ranges: the least and the largest number of a
    column. scaling: ``standard``, ``robust`` (by quartiles within ranges) and ``per_site`` are learnt from sums that
    sites send; ``fixed`` goes by ranges alone; ``none``. lacking: whether a site without a column is refused, or all of
    its rows are missing there.
    label, class_of and the others: how files to predict for are written, as in :class:`Table`; sites have their own.
    """

    name: ClassVar[str] = ELSEWHERE
    summary: ClassVar[str] = "rows that only the sites have"

    sheet: ClassVar[str] = ""  # type: ignore[misc] # no key: files to predict for have one sheet

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
                "shape, bytes and image_size are not for tables: features says what a row becomes",
            )
            _ = self.agreed  # refuses what cannot be
            require(self.label not in self.features, f"features names the column of labels, {self.label!r}")
            strange = sorted(set(self.class_of.values()) - set(self.classes))
            require(not strange, f"class_of names the class {strange[:1]}, which classes does not")
            return
        require(
            len(self.shape) > 0 and min(self.shape) >= 1, f"shape must be that of a stored row, not {list(self.shape)}"
        )
        given = [name for name in ("categories", "dates", "ranges") if getattr(self, name)]
        require(not given, f"{given[0] if given else ''} is for tables, which have features too")

    @cached_property
    def agreed(self) -> AgreedColumns:
        """The columns of tables."""
        return AgreedColumns(self.features, self.categories, self.dates, self.ranges, self.scaling)

    @property
    def labelled_only(self) -> bool:
        """Whether every site is said to hold labelled rows alone."""
        return all(self.domains.get(site) == "source" for site in self.sites)

    @property
    def view(self) -> View:
        """How stored rows are shown to the network."""
        return CropAndFlip(self.image_size) if self.image_size else WholeRows()

    def table_input(self, columns: tuple[Column, ...], scales: Mapping[str, tuple[Scale, ...]]) -> TableInput:
        """How a table like those of the sites becomes rows."""
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
        """No rows at all, of the right shape."""
        return self._no_rows(self.shape, None)

    def encoded(self, how: TableInput) -> EncodedElsewhere:
        """The same, where it is known how tables become rows."""
        return EncodedElsewhere(self._no_rows((len(how.headings),), how))

    def _no_rows(self, shape: tuple[int, ...], how: TableInput | None) -> DomainPair:
        none = Labelled(
            torch.empty(0, *shape, dtype=torch.uint8 if self.bytes else torch.float32),
            torch.empty(0, dtype=torch.int64),
        )
        return DomainPair(none, none, none, none, self.classes, view=self.view, input=how)


@dataclass(frozen=True)
class EncodedElsewhere:
    """Tables that only the sites have, of which it is known how they become rows."""

    name: ClassVar[str] = ELSEWHERE
    summary: ClassVar[str] = RowsElsewhere.summary

    pair: DomainPair

    def load(self) -> DomainPair:
        return self.pair


def experiment_anywhere(tables: Mapping[str, Any]) -> Experiment:
    """The experiment of a file, whose rows may be at sites."""
    here, data = with_stand_in(tables), tables.get("data", {})
    if here is tables:
        return experiment(tables)
    rows = build(RowsElsewhere, {key: value for key, value in data.items() if key != "name"}, "data")
    return replace(experiment(here), data=rows)


def with_stand_in(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tables with a built-in data set in place of rows at sites, for whoever looks at the other sections alone."""
    data = tables.get("data", {})
    elsewhere = isinstance(data, Mapping) and data.get("name") == ELSEWHERE
    return {**tables, "data": {"name": _STAND_IN}} if elsewhere else tables
