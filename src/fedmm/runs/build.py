"""Build clients, networks and data for training from an experiment's configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedmm.config.schema import Experiment
from fedmm.core.errors import unknown
from fedmm.core.problem import WholeRows
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.partition import Share
from fedmm.data.rows import TensorRows
from fedmm.data.tensor_files import load_cached
from fedmm.models.frozen_prefix import FrozenPart, split_frozen_part
from fedmm.training.adaptation import Adaptation, WholeNetwork
from fedmm.training.clients import Client
from fedmm.training.privacy import require_nothing_learnt


class DataCache:
    """Loaded data sets and their copies on devices, shared by replicas that use the same rows.

    It also holds the outputs of frozen layers, which are cached on disk as well.
    """

    def __init__(self) -> None:
        self._pairs: dict[str, DomainPair] = {}
        self._behind: dict[tuple[object, ...], Tensor] = {}

    def pair(self, experiment: Experiment, device: torch.device) -> DomainPair:
        """Return the experiment's data on a device."""
        key = f"{experiment.data!r} {device}"
        if key not in self._pairs:
            if device.type == "cpu":
                self._pairs[key] = experiment.data.load()
            else:
                self._pairs[key] = _move_pair(self.pair(experiment, torch.device("cpu")), device)
        return self._pairs[key]

    def behind(self, part: FrozenPart, pair: DomainPair) -> DomainPair:
        """Return the pair with the frozen layers' outputs as its rows, on the same device; shared rows stay shared."""
        frozen, device = part.checksum(), pair.source.x.device
        part = part.to(device)

        def seen(rows: Labelled) -> Labelled:
            x = rows.x
            if not len(x):
                return Labelled(part(pair.target.x[:1] if len(pair.target.x) else pair.source.x[:1])[:0], rows.y)
            key = (frozen, str(device), x.data_ptr(), tuple(x.shape), x.dtype)
            if key not in self._behind:
                content = hashlib.sha256(x.cpu().contiguous().numpy().tobytes()).hexdigest()
                made = load_cached(
                    "behind", (frozen, content, str(x.dtype), device.type), lambda: {"x": part.of_all(x).cpu()}
                )
                self._behind[key] = made["x"].to(device)
            return Labelled(self._behind[key], rows.y)

        return _each_part(pair, seen)


def _move_pair(pair: DomainPair, device: torch.device) -> DomainPair:
    return _each_part(pair, lambda part: Labelled(part.x.to(device), part.y.to(device)))


def _each_part(pair: DomainPair, change: Callable[[Labelled], Labelled]) -> DomainPair:
    return replace(
        pair,
        source=change(pair.source),
        target=change(pair.target),
        source_test=change(pair.source_test),
        target_test=None if pair.target_test is None else change(pair.target_test),
        source_validation=None if pair.source_validation is None else change(pair.source_validation),
    )


def select_test_rows(pair: DomainPair) -> dict[str, Labelled]:
    """Return the rows that a model is tested on, by domain; a domain without labelled test rows is left out."""
    parts = {"target": pair.target_test, "source": pair.source_test}
    return {name: part for name, part in parts.items() if part is not None and len(part.y)}


def rows_held_at(pair: DomainPair) -> dict[str, Tensor]:
    """Return the number of the site that holds each labelled source row, by set of rows, if the data has sites."""
    sites = pair.sites
    held = {} if sites is None else {"source": sites.source_test, "source_validation": sites.source_validation}
    return {name: numbers for name, numbers in held.items() if numbers is not None}


def prepare(experiment: Experiment, cache: DataCache) -> Adaptation:
    """Check and build everything, ready to run."""
    run = experiment.run
    device = run.torch_device
    on_cpu, on_device = (
        experiment.partition.seen(cache.pair(experiment, place)) for place in (torch.device("cpu"), device)
    )
    require_nothing_learnt(experiment.terms, on_cpu.input)
    shares = experiment.partition.split(on_cpu, run.seed)
    names = [share.name for share in shares]
    for client in run.client_weights:
        if client not in names:
            raise unknown("client in run.client_weights", client, names)
    network = experiment.model.build(on_cpu.view.shape(tuple(on_cpu.source.x.shape[1:])), on_cpu.classes, run.seed)
    whole, view = None, on_cpu.view
    split = split_frozen_part(network, on_cpu.source.x[:1]) if view == WholeRows() else None
    if split is not None:
        part, behind = split
        whole = WholeNetwork(network, on_cpu.source.x[:2], view)
        on_device, network = cache.behind(part.to(run.torch_dtype), on_device), behind
    return Adaptation(
        [_client(share, on_device, run.client_weights.get(share.name, 1.0)) for share in shares],
        network,
        experiment.objective,
        experiment.algorithm,
        run,
        validation=select_test_rows(on_device) or None,
        source_validation=on_device.source_validation,
        view=view,
        terms=experiment.terms,
        guard=experiment.guard,
        held_at=rows_held_at(on_device),
        whole=whole,
    )


def _client(share: Share, pair: DomainPair, weight: float) -> Client:
    source, target = (rows.to(pair.source.x.device) for rows in (share.source, share.target))
    return Client(
        source=TensorRows(pair.source.x, pair.source.y, index=source) if len(source) else None,
        target=TensorRows(pair.target.x, index=target) if len(target) else None,
        name=share.name,
        weight=weight,
    )
