"""Sites in Flower's simulation: the shares of the experiment's own data, by number."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from fedmm.core.errors import require
from fedmm.deploy.federation import LocalSite
from fedmm.deploy.local import local_sites
from fedmm.deploy.processes import MARK
from fedmm.sites.config import DataSection, PolicySection, SiteConfig, SiteSection, SuperLinkSection
from fedmm.sites.experiments import deployed_experiment

_NO_END = 1 << 62


def simulated_site(number: int, experiment: str) -> SiteConfig:
    """The site with a number, from 0; its states lie in the federation's folder, as they would elsewhere."""
    folder = os.environ.get(MARK, "")
    require(bool(folder), f"set {MARK} to a folder for the simulated sites' states and the runs")
    sites = local_sites(deployed_experiment(tomllib.loads(experiment)))
    require(
        0 <= number < len(sites),
        f"there are {len(sites)} sites in the experiment; give the simulation as many SuperNodes",
    )
    site = sites[number]
    return SiteConfig(
        Path(folder).resolve() / "simulated.toml",
        SiteSection(site.name, f"state/{site.name}"),
        DataSection(**{**site.data, "labels": tuple(site.data["labels"])}),
        SuperLinkSection("127.0.0.1:1", insecure=True),
        _own_policy(site),
    )


def _own_policy(site: LocalSite) -> PolicySection:
    """What may be asked of a site whose owner runs the experiment: anything, as often as one likes."""
    return PolicySection(
        tuple(site.policy["allow_imports"]),
        tuple(site.policy["allow_paths"]),
        min_batch_size=1,
        min_local_steps=1,
        min_rows=1,
        max_rounds=_NO_END,
        max_questions=_NO_END,
    )
