"""Experiments whose rows are at sites: as usual, or with ``[data] name = "sites"`` if the server has no rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmm.config.schema import Experiment
from fedmm.config.sites import RowsElsewhere, experiment_anywhere
from fedmm.config.toml import read_tables, set_values, write_toml
from fedmm.core.errors import require
from fedmm.core.files import domain_of
from fedmm.data.datasets.per_site import KEY as PER_SITE
from fedmm.data.datasets.per_site import PerSite
from fedmm.models.backbones import MobileNetV2
from fedmm.runs.tuning.candidates import TUNE
from fedmm.sites.credentials.files import STDIN, read_input_tables


def deployed_experiment(tables: Mapping[str, Any]) -> Experiment:
    """Build the experiment of a federation of sites."""
    found = experiment_anywhere(tables)
    require(
        not isinstance(found.data, PerSite),
        f"data.{PER_SITE} is only for runs in one place; let every site standardise its own rows before it takes part",
    )
    return found


def read_experiment(file: Path, settings: Sequence[str]) -> Experiment:
    """Read the experiment of a file, or of standard input for ``-``, with changed values; ignore a ``[tune]``."""
    return deployed_experiment({name: table for name, table in read_sections(file, settings).items() if name != TUNE})


def read_sections(file: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Read the tables of such a file."""
    tables = read_input_tables(file) if file == STDIN else read_tables(file)
    return set_values(tables, list(settings))


def experiment_text(experiment: Experiment) -> str:
    """Return the whole experiment as TOML, defaults included."""
    return write_toml(experiment.tables())


def site_names(experiment: Experiment) -> list[str]:
    """Return who takes part, in the listed order."""
    return list(listed_sites(experiment))


def listed_sites(experiment: Experiment) -> dict[str, str]:
    """Return who takes part, in the listed order, and the domain that each should have; empty if unknown."""
    if isinstance(experiment.data, RowsElsewhere):
        return {site: experiment.data.domains.get(site, "") for site in experiment.data.sites}
    pair = experiment.partition.seen(experiment.data.load())
    shares = experiment.partition.split(pair, experiment.run.seed)
    return {share.name: domain_of(len(share.source) > 0, len(share.target) > 0) for share in shares}


def require_quorum(min_sites: int, listed: Mapping[str, str]) -> None:
    """Raise FedmmError for a ``min_sites`` that the others could not join. listed: each site's domain, if known."""
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


def named_paths(experiment: Experiment) -> dict[str, str]:
    """Return the files and folders that an experiment names, by key: ``model.weights``, ``data.files.east``."""
    found: dict[str, str] = {}
    for section, part in (("model", experiment.model), ("data", experiment.data)):
        for name in getattr(part, "paths", ()):
            value = getattr(part, name)
            texts = value.items() if isinstance(value, Mapping) else [("", value)]
            found |= {f"{section}.{name}{key and '.'}{key}": text for key, text in texts if text}
    if isinstance(experiment.model, MobileNetV2) and experiment.model.weights == "imagenet":  # torchvision's own
        found.pop("model.weights", None)
    return found
