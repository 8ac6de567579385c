"""Experiments whose rows are at sites: as usual, or with ``[data] name = "sites"`` where the server has no rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from fedmm.core.checks import at_least
from fedmm.core.errors import require, unknown
from fedmm.core.views import View, WholeRows
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.per_site import KEY as PER_SITE
from fedmm.data.per_site import PerSite
from fedmm.data.views import CropAndFlip
from fedmm.deploy.site_config import DOMAINS
from fedmm.experiment.config import Experiment, experiment
from fedmm.experiment.tables import build
from fedmm.models.mobilenet import MobileNetV2

ELSEWHERE = "sites"
_STAND_IN = "moons"


@dataclass(frozen=True)
class RowsElsewhere:
    """Rows that only the sites have.

    sites: their names. classes: the names of all classes, in the order of their labels. shape: of a stored row.
    bytes: whether rows are stored as bytes. image_size: pictures are cropped to it and flipped in training; 0 for rows
    as they are. domains: by site, what it holds: ``source``, ``target`` or ``both``; a site that holds something else
    is refused, and a run may begin without a site of which this is known.
    """

    name: ClassVar[str] = ELSEWHERE
    summary: ClassVar[str] = "rows that only the sites have"

    sites: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    bytes: bool = False
    image_size: int = 0
    domains: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(len(self.sites) > 0, "sites must name the sites of the federation")
        require(len(set(self.sites)) == len(self.sites), "sites must name every site once")
        require(len(self.classes) >= 2, "classes must name at least two classes")
        require(
            len(self.shape) > 0 and min(self.shape) >= 1, f"shape must be that of a stored row, not {list(self.shape)}"
        )
        at_least("image_size", self.image_size, 0)
        for site, domain in self.domains.items():
            if site not in self.sites:
                raise unknown("site in domains", site, self.sites)
            require(domain in DOMAINS, f"domains.{site} must be one of {', '.join(DOMAINS)}, not {domain!r}")

    @property
    def view(self) -> View:
        """How stored rows are shown to the network."""
        return CropAndFlip(self.image_size) if self.image_size else WholeRows()

    def load(self) -> DomainPair:
        """No rows at all, of the right shape."""
        none = Labelled(
            torch.empty(0, *self.shape, dtype=torch.uint8 if self.bytes else torch.float32),
            torch.empty(0, dtype=torch.int64),
        )
        return DomainPair(none, none, none, none, self.classes, view=self.view)


def deployed_experiment(tables: Mapping[str, Any]) -> Experiment:
    """The experiment of a federation of sites."""
    data = tables.get("data", {})
    if not isinstance(data, Mapping) or data.get("name") != ELSEWHERE:
        found = experiment(tables)
        require(
            not isinstance(found.data, PerSite),
            f"data.{PER_SITE} is for runs in one place; let every site standardise its own rows before it shares in",
        )
        return found
    rows = build(RowsElsewhere, {key: value for key, value in data.items() if key != "name"}, "data")
    return replace(experiment({**tables, "data": {"name": _STAND_IN}}), data=rows)


def site_names(each: Experiment) -> list[str]:
    """Who takes part, in the order in which they are listed."""
    return list(listed_sites(each))


def listed_sites(each: Experiment) -> dict[str, str]:
    """Who takes part, in the order in which they are listed, and what each is to hold; empty where it is not known."""
    if isinstance(each.data, RowsElsewhere):
        return {site: each.data.domains.get(site, "") for site in each.data.sites}
    pair = each.partition.seen(each.data.load())
    shares = each.partition.split(pair, each.run.seed)
    return {share.name: _domain(len(share.source) > 0, len(share.target) > 0) for share in shares}


def _domain(source: bool, target: bool) -> str:
    return "both" if source and target else "source" if source else "target"


def require_quorum(min_sites: int, listed: Mapping[str, str]) -> None:
    """Refuse to begin with so many sites where the rest could not join. listed: what each is to hold, where known."""
    require(
        0 <= min_sites <= len(listed),
        f"min_sites must be from 1 to {len(listed)}, the number of sites, or 0 for all, not {min_sites}",
    )
    unclear = [name for name, domain in listed.items() if not domain]
    require(
        min_sites in (0, len(listed)) or not unclear,
        f"min_sites = {min_sites} lets the run begin without {', '.join(unclear)}, and the experiment does not say "
        'what they hold; list them in data.domains as "source", "target" or "both"',
    )


def named_paths(each: Experiment) -> dict[str, str]:
    """The files and folders that an experiment names, by key: ``model.weights``, ``data.files.east``."""
    found: dict[str, str] = {}
    for section, part in (("model", each.model), ("data", each.data)):
        for name in getattr(part, "paths", ()):
            value = getattr(part, name)
            texts = value.items() if isinstance(value, Mapping) else [("", value)]
            found |= {f"{section}.{name}{key and '.'}{key}": text for key, text in texts if text}
    if isinstance(each.model, MobileNetV2) and each.model.weights == "imagenet":  # torchvision's own
        found.pop("model.weights", None)
    return found
