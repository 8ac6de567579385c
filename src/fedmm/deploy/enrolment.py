"""Who takes part in a run: what each site reported of itself at the start, and who may still join."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch

from fedmm.config.schema import Experiment
from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.files import write_json
from fedmm.data.domains import DomainPair
from fedmm.data.rows import TensorRows
from fedmm.models.network import Network
from fedmm.remote.flower.apps import Grid
from fedmm.remote.flower.roster import Roster, wait_for_sites
from fedmm.remote.packed import Malformed, Packed
from fedmm.runs.build import DataCache
from fedmm.sites.compatibility import difference
from fedmm.sites.experiments import require_quorum
from fedmm.sites.site_info import Expected, SiteInfo, read_site_info, site_info_from
from fedmm.training.clients import Client, class_shares

SITES = "sites.json"
_LATE, _JOINED = "late", "joined"


class Enrolment:
    """The sites of a run; ``sites.json`` keeps them from its start to its end, so that a resume changes nothing.

    listed: each site's domain by name; empty if the experiment does not say.
    infos: of all listed sites, once the run has started; for a site that was missing, what the experiment says of it.
    late: the sites that were missing. Such a site joins as one that was never counted: it trains but evaluates nothing,
    so that metrics are over the same sites in all rounds.
    """

    def __init__(self, path: Path, listed: Mapping[str, str], expected: Expected, say: Say) -> None:
        self.listed = dict(listed)
        self.infos: dict[str, SiteInfo] = {}
        self.late: set[str] = set()
        self._joined: set[str] = set()
        self._path, self._expected, self._say = path, expected, say
        self._begun = False

    def admit(self, name: str, packed: Packed) -> str:
        """Return why a site with this introduction cannot take part; empty if it can, and is recorded."""
        try:
            info = read_site_info(packed)
        except Malformed as problem:
            return str(problem)
        flaw = self._expected.flaw(name, info)
        before = self.infos.get(name)
        if not flaw and before and before.domain != info.domain:
            flaw = f"it holds other domains ({info.domain}) than when the run started ({before.domain})"
        if flaw:
            return flaw
        other = difference(packed.about.get("versions"), f"the site {name!r}")
        if other:
            self._say(other)
        if not self._begun:
            self.infos[name] = before if before and name in self.late else _keep_sums(before, info)
        elif name in self.late - self._joined:
            self._say(f"site {name!r} joins the run, which started without it")
            self._joined.add(name)
            self._write()
        return ""

    def enrol(
        self, grid: Grid, roster: Roster, introduction: Packed, seconds: float, min_sites: int, *, known: bool
    ) -> None:
        """Wait until all sites, or ``min_sites``, have introduced themselves; raise FedmmError if too few did.

        known: the run is resumed, so the sites that were part of it need not be there.
        """
        require_quorum(min_sites, self.listed)
        if known:
            self._read()
        waits = 0.0 if self.infos.keys() >= self.listed.keys() else seconds
        need = min_sites or len(self.listed)
        wait_for_sites(grid, roster, introduction, timeout=waits, say=self._say, enough=min_sites or None)
        missing = [name for name in self.listed if name not in self.infos]
        require(len(self.infos) >= need, self._too_few(missing, roster, seconds, min_sites))
        for name in missing:
            domain = self.listed[name]
            self.infos[name] = SiteInfo(
                domain != "target", domain != "source", self._expected.shape, self._expected.bytes
            )
            self.late.add(name)
        self._joined |= self.late & roster.nodes.keys()
        roster.late |= self.late - self._joined
        self._begun = True
        self._write()
        if roster.late:
            waiting = ", ".join(sorted(roster.late))
            self._say(f"the run continues without {waiting}, which may join later; until then no round waits for them")

    def _too_few(self, missing: list[str], roster: Roster, seconds: float, min_sites: int) -> str:
        present = len(self.listed) - len(missing)
        wanted = f"starts with {min_sites} sites, but {present} came" if min_sites else "needs them"
        reasons = {name: roster.refused[name] for name in missing if name in roster.refused}
        told = [f"{name} was turned away: {reason}" for name, reason in reasons.items()]
        told += sorted({*roster.turned_away.values()} - {*reasons.values()})
        refused = "; ".join(told)
        return (
            f"{', '.join(missing)} did not come within {seconds:g} seconds; the run {wanted}"
            f"{f' ({refused})' if refused else ''}"
        )

    def _write(self) -> None:
        table = {
            name: {**asdict(self.infos[name]), _LATE: name in self.late, _JOINED: name in self._joined}
            for name in self.listed
        }
        write_json(self._path, table)

    def _read(self) -> None:
        if not self._path.exists():
            return
        try:
            table = json.loads(self._path.read_text(encoding="utf-8"))
            for name, about in table.items():
                self.infos[name] = site_info_from(about)
                for flag, names in ((_LATE, self.late), (_JOINED, self._joined)):
                    if about.get(flag, False):
                        names.add(name)
        except (OSError, ValueError, AttributeError, RecursionError, Malformed) as problem:
            raise FedmmError(f"{self._path} cannot be read, so the run's sites are unknown: {problem}") from None
        for name, info in self.infos.items():
            require(name in self.listed, f"{self._path} lists the site {name!r}, which the experiment does not")
            flaw = self._expected.flaw(name, info)
            require(not flaw, f"{self._path} belongs to another experiment: it says of {name!r} that {flaw}")


def _keep_sums(before: SiteInfo | None, now: SiteInfo) -> SiteInfo:
    """Return a site's info with the sums and counts that the run was started with, if it was known before."""
    if before is None:
        return now
    return replace(now, input_sum=before.input_sum, input_count=before.input_count, class_counts=before.class_counts)


def expect_sites(experiment: Experiment, domains: Mapping[str, str], cache: DataCache) -> Expected:
    """Return what an experiment expects of its sites' infos. domains: each site's domain, if given."""
    pair = experiment.partition.seen(cache.pair(experiment, experiment.run.torch_device))
    row = pair.source.x
    centred = build_network(experiment, pair).centre == "train_mean"
    classes = pair.classes if experiment.objective.needs_class_shares else 0
    return Expected(
        tuple(row.shape[1:]), row.dtype == torch.uint8, experiment.run.batch_size, centred, domains, classes
    )


def build_network(experiment: Experiment, pair: DomainPair) -> Network:
    """Build the experiment's network for rows like these."""
    return experiment.model.build(pair.view.shape(tuple(pair.source.x.shape[1:])), pair.classes, experiment.run.seed)


def mean_input(infos: Mapping[str, SiteInfo]) -> float:
    """Return the mean of all sites' inputs, from their sums; 0 if the network needs none."""
    count = sum(info.input_count for info in infos.values())
    return sum(infos[name].input_sum for name in sorted(infos)) / count if count else 0.0


def shares_of_classes(experiment: Experiment, infos: Mapping[str, SiteInfo]) -> tuple[float, ...] | None:
    """Return each class's share of all sites' labelled rows, from their counts; None if not needed."""
    if not experiment.objective.needs_class_shares:
        return None
    counts = {name: info.class_counts for name, info in infos.items()}
    shares = class_shares(counts, {name: experiment.run.client_weights.get(name, 1.0) for name in infos})
    require(shares is not None, "no site has reported how many labelled rows it holds of each class")
    return shares


def stand_in_client(name: str, info: SiteInfo, weight: float) -> Client:
    """Return a client with one row of the right shape in place of the rows at a site."""
    source = stand_in_row(info, labelled=True) if info.source else None
    return Client(source, stand_in_row(info, labelled=False) if info.target else None, name, weight)


def stand_in_row(info: SiteInfo, *, labelled: bool) -> TensorRows:
    """Return one row of zeros with the shape and type of those at a site."""
    row = torch.zeros(1, *info.shape, dtype=torch.uint8 if info.bytes else torch.float32)
    return TensorRows(row, torch.zeros(1, dtype=torch.int64) if labelled else None)
