"""Federations on one machine, whose sites hold shares of an experiment's own data, and the demo."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from fedmm.algorithms import FedMM
from fedmm.config.demos import demo_experiments
from fedmm.config.schema import Experiment
from fedmm.config.sites import RowsElsewhere
from fedmm.core.errors import Say, require
from fedmm.core.files import domain_of, parse_toml
from fedmm.core.imports import allowed_names
from fedmm.deploy.federation import LocalSite, down, up
from fedmm.deploy.layout import Federation, RunRequest
from fedmm.deploy.processes import MARK
from fedmm.deploy.runs import follow, submit
from fedmm.deploy.server import keep_every_round
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import free_folder
from fedmm.sites.config import DataSection, PolicySection, SiteConfig, SiteSection, SuperLinkSection, read_site
from fedmm.sites.experiments import deployed_experiment, experiment_text, named_paths
from fedmm.training.checkpoints import checkpoints_of, newest_common


def local_sites(experiment: Experiment, files: Sequence[Path] = ()) -> list[LocalSite]:
    """Return a site per share of the experiment's data or, if its rows are at sites, one per site's own file."""
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
    """Return a local site with the rows and policy of a site's own file."""
    config = read_site(file)
    data = _list_changes(config.data)
    if config.data.path:
        data["path"] = str(config.path(config.data.path))
    return LocalSite(config.site.name, data, _list_changes(config.policy), _list_changes(config.site), masked)


def _list_changes(section: DataSection | SiteSection | PolicySection) -> dict[str, Any]:
    """Return the values of a section that differ from the defaults."""
    values = {key.name: (getattr(section, key.name), key.default) for key in fields(section)}
    return {key: value for key, (value, usual) in values.items() if value != usual and value not in ({}, ())}


_NO_END = 1 << 62


def build_simulated_site(number: int, experiment: str) -> SiteConfig:
    """Return the site with this number, from 0; its states are in the federation's folder, as those of real sites."""
    folder = os.environ.get(MARK, "")
    require(bool(folder), f"set {MARK} to a folder for the simulated sites' states and the runs")
    sites = local_sites(deployed_experiment(parse_toml(experiment, "the experiment")))
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
    """Return the policy of a site whose owner runs the experiment: anything, as often as asked."""
    return PolicySection(
        tuple(site.policy["allow_imports"]),
        tuple(site.policy["allow_paths"]),
        min_batch_size=1,
        min_local_steps=1,
        min_rows=1,
        max_rounds=_NO_END,
        max_questions=_NO_END,
    )


RUN = "digits"


def demo_experiment(rounds: int) -> Experiment:
    """Return FedMM on the digits of ``fedmm demo``, in few rounds of many local steps, since a round takes seconds."""
    (digits,) = (demo for demo in demo_experiments("digits", 1) if demo.algorithm.name == "fedmm")
    algorithm = FedMM(lr_min=0.1, lr_max=0.1, local_steps=100, penalty_min=0.1, penalty_max=0.1)
    return keep_every_round(replace(digits, run=replace(digits.run, rounds=rounds), algorithm=algorithm))


def demo(out: Path, rounds: int, *, insecure: bool = False, in_memory: bool = False, say: Say) -> bool:
    """Run the demo, then stop all its processes; return whether the result is bit-identical to that of one process."""
    require(rounds >= 1, f"--rounds must be at least 1, not {rounds}")
    experiment, folder = demo_experiment(rounds), free_folder(out)
    federation = Federation(folder)
    try:
        up(federation, local_sites(experiment), insecure=insecure, in_memory=in_memory, say=say)
        request = RunRequest(folder, RUN, experiment_text(experiment), patience=300.0, enrol_seconds=300.0)
        number = submit(request, say)
        status = follow(federation, RUN, number, say)
        require("completed" in status, f"the run ended with {status}; {federation.run(RUN) / 'server.log'} says why")
    finally:
        say(f"{down(federation)} processes ended")
    alike = same_result(experiment, federation.run(RUN), folder / "in-process", say)
    say(f"everything is in {folder}")
    return alike


def same_result(experiment: Experiment, deployed: Path, reference: Path, say: Say) -> bool:
    """Train the same in one process, and compare every bit of the server's state and the measured accuracy."""
    run_experiment(experiment, reference, progress=False)
    (one, history), (other, expected) = (
        newest_common([checkpoints_of(experiment.run, folder)], torch.device("cpu"), say)[0]
        for folder in (deployed, reference)
    )
    alike = one.round == other.round and one.server.keys() == other.server.keys()
    alike = alike and all(torch.equal(vector, other.server[name]) for name, vector in one.server.items())
    domain = "source" if history.last("target_accuracy") is None else "target"
    accuracies = [rows.last(f"{domain}_accuracy") for rows in (history, expected)]
    alike = alike and accuracies[0] == accuracies[1]
    words = "bit-identical" if alike else "NOT identical"
    say(f"after round {one.round}: federation and one process are {words}; {domain} accuracy {accuracies[0]:.4f}")
    if not alike:
        say(f"largest difference of the server's point: {float((one.z - other.z).abs().max()):.3g}")
    return bool(alike)
