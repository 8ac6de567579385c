"""From an experiment's configuration to clients, networks and data that can be trained."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedmm.core.errors import unknown
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.holdings import TensorRows
from fedmm.data.partition import Share
from fedmm.experiment.adapt import Adaptation
from fedmm.experiment.adaptation import Client
from fedmm.experiment.config import Experiment


class DataCache:
    """Data sets that were loaded, and their copies on a device: replicas that use the same rows share them."""

    def __init__(self) -> None:
        self._pairs: dict[str, DomainPair] = {}

    def pair(self, experiment: Experiment, device: torch.device) -> DomainPair:
        """The experiment's data on a device."""
        key = f"{experiment.data!r} {device}"
        if key not in self._pairs:
            if device.type == "cpu":
                self._pairs[key] = experiment.data.load()
            else:
                self._pairs[key] = _moved(self.pair(experiment, torch.device("cpu")), device)
        return self._pairs[key]


def _moved(pair: DomainPair, device: torch.device) -> DomainPair:
    def moved(part: Labelled) -> Labelled:
        return Labelled(part.x.to(device), part.y.to(device))

    return replace(
        pair,
        source=moved(pair.source),
        target=moved(pair.target),
        source_test=moved(pair.source_test),
        target_test=None if pair.target_test is None else moved(pair.target_test),
        source_validation=None if pair.source_validation is None else moved(pair.source_validation),
    )


def tested_rows(pair: DomainPair) -> dict[str, Labelled]:
    """The rows that a model is tested on, by domain; a domain without labels has none."""
    parts = {"target": pair.target_test, "source": pair.source_test}
    return {name: part for name, part in parts.items() if part is not None and len(part.y)}


def prepare(experiment: Experiment, cache: DataCache) -> Adaptation:
    """Everything checked and built, ready to run."""
    run = experiment.run
    device = run.torch_device
    here, there = (experiment.partition.seen(cache.pair(experiment, each)) for each in (torch.device("cpu"), device))
    shares = experiment.partition.split(here, run.seed)
    names = [share.name for share in shares]
    for client in run.client_weights:
        if client not in names:
            raise unknown("client in run.client_weights", client, names)
    return Adaptation(
        [_client(share, there, run.client_weights.get(share.name, 1.0)) for share in shares],
        experiment.model.build(here.view.shape(tuple(here.source.x.shape[1:])), here.classes, run.seed),
        experiment.objective,
        experiment.algorithm,
        run.rounds,
        validation=tested_rows(there) or None,
        source_validation=there.source_validation,
        probe_rows=run.probe_rows,
        batch_size=run.batch_size,
        seed=run.seed,
        device=device,
        dtype=run.torch_dtype,
        view=here.view,
        terms=experiment.terms,
        guard=experiment.guard,
        best_by=run.best_by,
        stopping=run.stopping,
    )


def _client(share: Share, pair: DomainPair, weight: float) -> Client:
    source, target = (rows.to(pair.source.x.device) for rows in (share.source, share.target))
    return Client(
        source=TensorRows(pair.source.x, pair.source.y, index=source) if len(source) else None,
        target=TensorRows(pair.target.x, index=target) if len(target) else None,
        name=share.name,
        weight=weight,
    )
