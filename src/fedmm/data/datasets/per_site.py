"""The cheapest form of adaptation: each site standardises its rows by their own mean and deviation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.data.columns import Standardiser
from fedmm.data.domains import DataSet, DomainPair, Labelled, Sites

KEY = "standardise_per_site"
"""A key of ``[data]`` that any data set accepts beside its own options."""
_SAME = 1e-6
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class PerSite:
    """Another data set whose sites standardise their rows; if it names no sites, its two domains do.

    A row ``[numbers]`` is standardised number by number, a picture ``[channels, ...]`` channel by channel, by the
    statistics of the site's training rows; labels are not used. Test rows are scaled like their site's or, if that is
    unknown, like their domain's. A file does not say which site's statistics its rows need, so there is no ``input``.
    """

    name: ClassVar[str] = "per_site"
    summary: ClassVar[str] = "another data set whose sites standardise their own rows"

    of: DataSet

    def load(self) -> DomainPair:
        """Return the pair with float32 rows."""
        pair = self.of.load()
        source, target = pair.source.x, pair.target.x
        sites = pair.sites or _domains_as_sites(pair)
        scales = {
            number: _scale([source[sites.source == number], target[sites.target == number]])
            for number in range(len(sites.names))
        }
        domains = {"source": _scale([source]), "target": _scale([target])}

        def scaled(rows: Labelled, held_by: Tensor | None, domain: str) -> Labelled:
            if held_by is None:
                return Labelled(_scale_rows(domains[domain], rows.x), rows.y)
            x = rows.x.new_empty(rows.x.shape, dtype=torch.float32)
            for number in sorted(set(held_by.tolist())):
                scale = scales.get(number, domains[domain])
                x[held_by == number] = _scale_rows(scale, rows.x[held_by == number])
            return Labelled(x, rows.y)

        tested = scaled(pair.source_test, sites.source_test, "source")
        validation = pair.source_validation
        if validation is not None:
            validation = (
                tested if validation is pair.source_test else scaled(validation, sites.source_validation, "source")
            )
        return replace(
            pair,
            source=scaled(pair.source, sites.source, "source"),
            target=scaled(pair.target, sites.target, "target"),
            source_test=tested,
            target_test=pair.target_test and scaled(pair.target_test, sites.target_test, "target"),
            source_validation=validation,
            input=None,
        )


def _scale(parts: Iterable[Tensor]) -> Standardiser:
    chunks = [chunk for part in parts if len(part) for chunk in torch.split(part, _ROWS_AT_ONCE)]
    return Standardiser.fit(chunks, _SAME)


def _scale_rows(scale: Standardiser, x: Tensor) -> Tensor:
    """Scale in parts, since a float64 copy of all pictures would be large."""
    return torch.cat([scale(part) for part in torch.split(x, _ROWS_AT_ONCE)]) if len(x) else x.float()


def _domains_as_sites(pair: DomainPair) -> Sites:
    source, target = (torch.full((len(part.y),), number) for number, part in enumerate((pair.source, pair.target)))
    return Sites(("source", "target"), source, target)
