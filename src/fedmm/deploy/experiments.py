"""Experiments whose rows are at sites: as usual, or with ``[data] name = "sites"`` where the server has no rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmm.core.errors import require
from fedmm.data.per_site import KEY as PER_SITE
from fedmm.data.per_site import PerSite
from fedmm.experiment.config import Experiment
from fedmm.experiment.elsewhere import ELSEWHERE, RowsElsewhere, experiment_anywhere

__all__ = ["ELSEWHERE", "RowsElsewhere", "deployed_experiment", "site_names"]


def deployed_experiment(tables: Mapping[str, Any]) -> Experiment:
    """The experiment of a federation of sites."""
    found = experiment_anywhere(tables)
    require(
        not isinstance(found.data, PerSite),
        f"data.{PER_SITE} is for runs in one place; let every site standardise its own rows before it shares in",
    )
    return found


def site_names(each: Experiment) -> list[str]:
    """Who takes part, in the order in which they are listed."""
    if isinstance(each.data, RowsElsewhere):
        return list(each.data.sites)
    pair = each.partition.seen(each.data.load())
    return [share.name for share in each.partition.split(pair, each.run.seed)]
