"""Partitions: how the rows of two domains are dealt to clients, each a frozen dataclass of its options."""

from __future__ import annotations

import itertools
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.seeding import key, permutation
from fedmm.core.validation import at_least, within
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.labels import UNLABELLED

_LONGEST_NAME = 60
DIRICHLET_DRAWS = 100
"""Draws of the label skew before :class:`Dirichlet` gives up."""


@dataclass(frozen=True)
class Share:
    """One client's rows: int64 indices into ``pair.source`` and ``pair.target``, ascending; one may be empty."""

    name: str
    source: Tensor
    target: Tensor


@dataclass(frozen=True)
class Partition(ABC):
    """Base class of all partitions."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def seen(self, pair: DomainPair) -> DomainPair:
        """Return the pair to deal: ``pair`` itself, except for bounds that train on something else."""
        return pair

    @abstractmethod
    def split(self, pair: DomainPair, seed: int) -> list[Share]:
        """Return one share per client; every training row belongs to exactly one, and every client has rows.

        pair: as returned by :meth:`seen`.
        """


@dataclass(frozen=True)
class PSplit(Partition):
    """Two clients: the first holds a share p of the source and 1 - p of the target, the second the rest (Fig. 2)."""

    name: ClassVar[str] = "p_split"
    summary: ClassVar[str] = "two clients: a share p of the source and 1 - p of the target, and the rest (Fig. 2)"

    p: float = 1.0

    def __post_init__(self) -> None:
        within("p", self.p, 0.0, 1.0)

    def split(self, pair: DomainPair, seed: int) -> list[Share]:
        source, target = _shuffle_rows(pair, seed, self.name)
        at_source, at_target = round(self.p * len(source)), round((1.0 - self.p) * len(target))
        shares = [
            Share("client-1", _sort(source[:at_source]), _sort(target[:at_target])),
            Share("client-2", _sort(source[at_source:]), _sort(target[at_target:])),
        ]
        for share in shares:
            require(
                len(share.source) + len(share.target) > 0,
                f"p = {self.p:g} leaves {share.name} without rows, of {len(source)} source and {len(target)} target "
                "rows; use p = 0 or 1, or more rows",
            )
        return shares


@dataclass(frozen=True)
class _OneDomainEach(Partition):
    """Source-only and target-only clients."""

    source_clients: int = 2
    target_clients: int = 1

    def __post_init__(self) -> None:
        at_least("source_clients", self.source_clients, 1)
        at_least("target_clients", self.target_clients, 1)


@dataclass(frozen=True)
class SourceTarget(_OneDomainEach):
    """Source-only and target-only clients; each domain is dealt evenly at random."""

    name: ClassVar[str] = "source_target"
    summary: ClassVar[str] = "source-only and target-only clients, rows dealt evenly at random"

    source_clients: int = 1

    def split(self, pair: DomainPair, seed: int) -> list[Share]:
        source, target = _shuffle_rows(pair, seed, self.name)
        return _apart(
            _dealt(source, self.source_clients, "source"),
            _dealt(target, self.target_clients, "target"),
        )


@dataclass(frozen=True)
class DisjointClasses(_OneDomainEach):
    """Source-only clients with a block of consecutive classes each (0-4, 5-9), and target-only clients dealt evenly."""

    name: ClassVar[str] = "disjoint_classes"
    summary: ClassVar[str] = "source-only clients with classes of their own, target-only clients dealt evenly"

    def split(self, pair: DomainPair, seed: int) -> list[Share]:
        _, target = _shuffle_rows(pair, seed, self.name)
        require(
            self.source_clients <= pair.classes,
            f"source_clients is {self.source_clients}, but there are only {pair.classes} classes to deal; "
            f"use {pair.classes} or fewer",
        )
        blocks = torch.arange(pair.classes).tensor_split(self.source_clients)
        parts = [
            torch.isin(pair.source.y, block.to(pair.source.y.device)).nonzero().squeeze(1).cpu() for block in blocks
        ]
        for block, part in zip(blocks, parts, strict=True):
            require(
                len(part) > 0,
                f"source_clients = {self.source_clients} leaves a client with the classes {int(block[0])} to "
                f"{int(block[-1])} alone, of which the source has no rows; use fewer source_clients",
            )
        return _apart(parts, _dealt(target, self.target_clients, "target"))


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Source-only and target-only clients; their shares of each class are drawn from Dirichlet(alpha) in each domain.

    alpha: small is skewed (near 0 a class has one owner), large is even.
    min_rows: the least number of rows per client; skews that give a client fewer are drawn again.
    """

    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = "source-only and target-only clients with label skew from Dirichlet(alpha)"

    alpha: float = 0.5
    source_clients: int = 2
    target_clients: int = 2
    min_rows: int = 1

    def __post_init__(self) -> None:
        within("alpha", self.alpha, 1e-6, 1e6)
        at_least("source_clients", self.source_clients, 1)
        at_least("target_clients", self.target_clients, 1)
        at_least("min_rows", self.min_rows, 1)

    def split(self, pair: DomainPair, seed: int) -> list[Share]:
        return _apart(
            self._skewed(pair.source.y, self.source_clients, "source", seed),
            self._skewed(pair.target.y, self.target_clients, "target", seed),
        )

    def _skewed(self, labels: Tensor, clients: int, domain: str, seed: int) -> list[Tensor]:
        if domain == "target" and not len(labels):
            return []
        most = len(labels) // self.min_rows
        require(
            clients <= most,
            f"{domain}_clients is {clients}, but the {len(labels)} {domain} rows are enough for {most} clients with "
            f"min_rows = {self.min_rows}; use fewer {domain}_clients or a smaller min_rows",
        )
        y = labels.cpu()
        order = permutation(key(seed, "partition", self.name, domain), len(y))
        by_class = [order[y[order] == label] for label in sorted(set(y.tolist()))]
        for draw in range(DIRICHLET_DRAWS):
            random = np.random.default_rng(key(seed, "partition", self.name, domain, "skew", draw))
            shares = random.dirichlet(np.full(clients, self.alpha), size=len(by_class))
            dealt = [_cut_rows(rows, share) for rows, share in zip(by_class, shares, strict=True)]
            parts = [torch.cat(part) for part in zip(*dealt, strict=True)]
            if min(len(part) for part in parts) >= self.min_rows:
                return parts
        raise FedmmError(
            f"alpha = {self.alpha:g} left some {domain} client with fewer than min_rows = {self.min_rows} rows in all "
            f"of {DIRICHLET_DRAWS} draws; use a larger alpha, fewer {domain}_clients or a smaller min_rows"
        )


@dataclass(frozen=True)
class Iid(Partition):
    """Clients with the same distribution: both domains are dealt to all of them, evenly at random."""

    name: ClassVar[str] = "iid"
    summary: ClassVar[str] = "clients that are alike, rows of both domains dealt evenly at random"

    clients: int = 10

    def __post_init__(self) -> None:
        at_least("clients", self.clients, 1)

    def split(self, pair: DomainPair, seed: int) -> list[Share]:
        source, target = _shuffle_rows(pair, seed, self.name)
        rows = self._order(source, pair)
        require(
            self.clients <= len(rows),
            f"clients is {self.clients}, but there are only {len(rows)} labelled training rows; use {len(rows)} or "
            "fewer",
        )
        parts = zip(_number_parts(rows.tensor_split(self.clients)), target.tensor_split(self.clients), strict=True)
        return [Share(f"client-{number}", _sort(own), _sort(other)) for (number, own), other in parts]

    def _order(self, source: Tensor, pair: DomainPair) -> Tensor:
        """Return the source rows in dealing order."""
        return source


@dataclass(frozen=True)
class LabelSorted(Iid):
    """Clients with source rows of one or two classes: rows are sorted by class and cut into equal parts.

    The target is dealt to all of them, evenly at random.
    """

    name: ClassVar[str] = "label_sorted"
    summary: ClassVar[str] = "clients with source rows of one class or two: sorted by class and cut into equal parts"

    def _order(self, source: Tensor, pair: DomainPair) -> Tensor:
        return source[pair.source.y.cpu()[source].sort(stable=True).indices]


@dataclass(frozen=True)
class Centralised(Partition):
    """One client that holds both domains: what pooling all data in one place would achieve."""

    name: ClassVar[str] = "centralised"
    summary: ClassVar[str] = "one client that holds both domains: the baseline for what federating costs"

    def split(self, pair: DomainPair, seed: int) -> list[Share]:
        return [Share("client-1", torch.arange(len(pair.source.y)), torch.arange(len(pair.target.y)))]


@dataclass(frozen=True)
class TargetSupervised(Centralised):
    """One client that trains on the target's training rows with their labels: an upper bound, not a method."""

    name: ClassVar[str] = "target_supervised"
    summary: ClassVar[str] = "one client with the target's own labels: the upper bound, with source_only"

    def seen(self, pair: DomainPair) -> DomainPair:
        """Return the pair with the labelled target as its source, and an empty target."""
        require(
            bool((pair.target.y != UNLABELLED).all()),
            "target_supervised learns from the target's labels, and some of them are not known; use another partition",
        )
        return replace(pair, source=pair.target, target=Labelled(pair.target.x[:0], pair.target.y[:0]))


@dataclass(frozen=True)
class BySite(Partition):
    """One client for each site that the data names, with that site's name and its rows of both domains."""

    name: ClassVar[str] = "by_site"
    summary: ClassVar[str] = "a client for each site that your own data names"

    def split(self, pair: DomainPair, seed: int) -> list[Share]:
        sites = pair.sites
        if sites is None:
            raise FedmmError(
                "by_site needs data that says who holds its rows: data.site of a table, data.sites of an image_folder, "
                "source_site and target_site of arrays"
            )
        shares = [
            Share(client, *((part == number).nonzero().squeeze(1) for part in (sites.source, sites.target)))
            for number, client in enumerate(name_clients(sites.names))
        ]
        return sorted(
            (share for share in shares if len(share.source) + len(share.target)), key=lambda share: share.name
        )


def name_clients(sites: Sequence[str]) -> list[str]:
    """Convert site names to characters that every engine and file system accepts; number those that would clash."""
    names: list[str] = []
    for site in sites:
        plain = unicodedata.normalize("NFKD", site).encode("ascii", "ignore").decode()
        short = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain).strip("-.")[:_LONGEST_NAME] or "site"
        taken = {name.lower() for name in names}
        numbered = (f"{short}-{number}" if number > 1 else short for number in itertools.count(1))
        names.append(next(name for name in numbered if name.lower() not in taken))
    return names


PARTITIONS: dict[str, type[Partition]] = {
    partition.name: partition
    for partition in (
        PSplit,
        SourceTarget,
        DisjointClasses,
        Dirichlet,
        Iid,
        LabelSorted,
        BySite,
        Centralised,
        TargetSupervised,
    )
}


def _shuffle_rows(pair: DomainPair, seed: int, name: str) -> tuple[Tensor, Tensor]:
    """Return the row numbers of both domains in random order."""
    return (
        permutation(key(seed, "partition", name, "source"), len(pair.source.y)),
        permutation(key(seed, "partition", name, "target"), len(pair.target.y)),
    )


def _dealt(rows: Tensor, clients: int, domain: str) -> tuple[Tensor, ...]:
    """Cut the rows into one part per client; an empty target, as in labelled-only data, has no clients."""
    if domain == "target" and not len(rows):
        return ()
    require(
        clients <= len(rows),
        f"{domain}_clients is {clients}, but the {domain} domain has only {len(rows)} training rows; "
        f"use {len(rows)} or fewer",
    )
    return rows.tensor_split(clients)


def _cut_rows(rows: Tensor, shares: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[Tensor, ...]:
    """Cut the rows into pieces with lengths nearly proportional to ``shares``, which sum to 1."""
    ends = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
    return rows.tensor_split(ends.tolist())


def _apart(source: Sequence[Tensor], target: Sequence[Tensor]) -> list[Share]:
    """Return clients that hold one domain each, with names that sort in order."""
    none = torch.empty(0, dtype=torch.int64)
    return [Share(f"source-{number}", _sort(rows), none) for number, rows in _number_parts(source)] + [
        Share(f"target-{number}", none, _sort(rows)) for number, rows in _number_parts(target)
    ]


def _number_parts(parts: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    width = len(str(len(parts)))
    return [(f"{number:0{width}d}", rows) for number, rows in enumerate(parts, start=1)]


def _sort(rows: Tensor) -> Tensor:
    return rows.sort().values
