"""Sites on one machine that each hold a share of an experiment's own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedmm.config.schema import Experiment
from fedmm.core.errors import require
from fedmm.core.imports import allowed_names
from fedmm.deploy.federation import LocalSite
from fedmm.sites.config import DataSection, PolicySection, SiteSection, read_site
from fedmm.sites.experiments import RowsElsewhere, named_paths


def local_sites(each: Experiment, files: Sequence[Path] = ()) -> list[LocalSite]:
    """A site for each share of the experiment's data; where its rows are at sites, one for each site's own file."""
    if isinstance(each.data, RowsElsewhere):
        sites = [_site_of_file(file, each.terms.secure_sum) for file in files]
        lacking = sorted(set(each.data.sites) - {site.name for site in sites})
        require(
            not lacking,
            f"the experiment's rows are at its sites, and {', '.join(lacking)} has no file here: write one for each "
            "site, and start it there with `fedmm deploy site SITE.toml`, or all on this machine with --site",
        )
        return sites
    require(not files, "--site is for experiments whose rows are at sites ([data] name = 'sites')")
    pair = each.partition.seen(each.data.load())
    paths, sites = list(named_paths(each).values()), []
    for share in each.partition.split(pair, each.run.seed):
        source, target = len(share.source) > 0, len(share.target) > 0
        domain = "both" if source and target else "source" if source else "target"
        labels = sorted(set(pair.source.y[share.source].tolist()))
        data = {"kind": "share", "domain": domain, "labels": labels}
        policy = {"allow_imports": allowed_names(), "allow_paths": paths}
        sites.append(LocalSite(share.name, data, policy, masked=each.terms.secure_sum))
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
    values = {each.name: (getattr(section, each.name), each.default) for each in fields(section)}
    return {key: value for key, (value, usual) in values.items() if value != usual and value not in ({}, ())}
