"""Sites on one machine that each hold a share of an experiment's own data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmm.core.errors import require
from fedmm.deploy.experiments import RowsElsewhere, deployed_experiment
from fedmm.deploy.lifecycle import LocalSite
from fedmm.experiment.config import Experiment
from fedmm.experiment.extending import read_tables
from fedmm.experiment.toml import set_values, write_toml


def read_experiment(file: Path, settings: Sequence[str]) -> Experiment:
    """The experiment of a file, with changed values."""
    return deployed_experiment(set_values(read_tables(file), list(settings)))


def experiment_text(each: Experiment) -> str:
    """The whole experiment as TOML, defaults included."""
    return write_toml(each.tables())


def local_sites(each: Experiment) -> list[LocalSite]:
    """A site for each share of the experiment's data."""
    require(
        not isinstance(each.data, RowsElsewhere),
        "the experiment's rows are at its sites: write a file for each site, and start it there with "
        "`fedmm deploy site SITE.toml`",
    )
    pair = each.partition.seen(each.data.load())
    sites = []
    for share in each.partition.split(pair, each.run.seed):
        source, target = len(share.source) > 0, len(share.target) > 0
        domain = "both" if source and target else "source" if source else "target"
        labels = sorted(set(pair.source.y[share.source].tolist()))
        data = {"kind": "share", "domain": domain, "labels": labels}
        sites.append(LocalSite(share.name, data, each.terms.secure_sum))
    return sites
