"""Sites on one machine that each hold a share of an experiment's own data, in processes or in Flower's simulation."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedmm.config.schema import Experiment
from fedmm.config.sites import RowsElsewhere
from fedmm.core.errors import require
from fedmm.core.files import domain_of
from fedmm.core.imports import allowed_names
from fedmm.deploy.federation import LocalSite
from fedmm.deploy.processes import MARK
from fedmm.sites.config import DataSection, PolicySection, SiteConfig, SiteSection, SuperLinkSection, read_site
from fedmm.sites.experiments import deployed_experiment, named_paths


def local_sites(experiment: Experiment, files: Sequence[Path] = ()) -> list[LocalSite]:
    """A site for each share of the experiment's data; where its rows are at sites, one for each site's own file."""
    if isinstance(experiment.data, RowsElsewhere):
        sites = [_site_of_file(file, experiment.terms.secure_sum) for file in files]
        lacking = sorted(set(experiment.data.sites) - {site.name for site in sites})
        require(
            not lacking,
            f"the experiment's rows are at its sites, and {', '.join(lacking)} has no file here: write one for each "
            "site, and start it there with `fedmm deploy site SITE.toml`, or all on this machine with --site",
        )
        return sites
    require(not files, "--site is for experiments whose rows are at sites ([data] name = 'sites')")
    pair = experiment.partition.seen(experiment.data.load())
    paths, sites = list(named_paths(experiment).values()), []
    for share in experiment.partition.split(pair, experiment.run.seed):
        domain = domain_of(len(share.source) > 0, len(share.target) > 0)
        labels = sorted(set(pair.source.y[share.source].tolist()))
        data = {"kind": "share", "domain": domain, "labels": labels}
        policy = {"allow_imports": allowed_names(), "allow_paths": paths}
        sites.append(LocalSite(share.name, data, policy, masked=experiment.terms.secure_sum))
    return sites


def _site_of_file(file: Path, masked: bool) -> LocalSite:
    """A site of this machine with the rows and the rules of a site's own file."""
    config = read_site(file)
    data = _given(config.data)
    if config.data.path:
        data["path"] = str(config.path(config.data.path))
    return LocalSite(config.site.name, data, _given(config.policy), _given(config.site), masked)


def _given(section: DataSection | SiteSection | PolicySection) -> dict[str, Any]:
    """What a section says that is not its default."""
    values = {key.name: (getattr(section, key.name), key.default) for key in fields(section)}
    return {key: value for key, (value, usual) in values.items() if value != usual and value not in ({}, ())}


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
