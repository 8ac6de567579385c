"""The clients of an adaptation: checks of the rows they hold, and statistics from their sums and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.objective import Objective
from fedmm.data.row_format import Part, RowFormat, learn_format
from fedmm.data.rows import Rows, TensorRows, has_length
from fedmm.training.solve import default_names, mean_one


@dataclass(frozen=True)
class Client:
    """A site and the rows it holds: labelled source rows, unlabelled target rows, or both.

    source: (inputs, labels) as arrays, tensors, lists or a DataFrame with its labels; or a Dataset or DataLoader of
        pairs (x, y) or of dicts like ``{"image": ..., "label": ...}``. Labels are class numbers from 0, or words.
    target: inputs in any of these forms; labels in a Dataset are ignored.
    name: decides the client's random draws and its place in every sum; by default ``client-1`` ... in order.
    weight: the paper's alpha_i; weights are scaled to mean 1 over the clients.
    """

    source: Any = None
    target: Any = None
    name: str | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        require(
            self.source is not None or self.target is not None,
            f"client {self.name or ''!r} holds nothing: give it source=(inputs, labels), target=inputs, or both",
        )

    def __repr__(self) -> str:
        held = [f"{domain}={_briefly(data)}" for domain, data in self._domains if data is not None]
        weight = [] if self.weight == 1.0 else [f"weight={self.weight!r}"]
        return f"Client({', '.join([*held, *([] if self.name is None else [f'name={self.name!r}']), *weight])})"

    @property
    def _domains(self) -> tuple[tuple[str, Any], tuple[str, Any]]:
        return ("source", self.source), ("target", self.target)


def _briefly(data: object) -> str:
    """Describe data without its values."""
    if isinstance(data, tuple):
        return f"({', '.join(map(_briefly, data))})"
    shape = getattr(data, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(data).__name__}{list(shape)}"
    size = f" of {len(data)}" if isinstance(data, Sized) and has_length(data) else ""
    return f"<{type(data).__name__}{size}>"


@dataclass(frozen=True)
class ClientData:
    """A client's checked rows."""

    name: str
    source: Rows | None
    target: Rows | None
    alpha: float

    @property
    def domains(self) -> str:
        """The domains it holds, such as ``source and target``; clients with the same domains form a group."""
        held = {"source": self.source, "target": self.target}
        return " and ".join(domain for domain, rows in held.items() if rows is not None)

    @property
    def sample(self) -> Tensor:
        """The first one or two rows."""
        held = self.source if self.source is not None else self.target
        assert held is not None
        return held.take(torch.arange(min(2, len(held))))


def client_names(clients: Sequence[Client]) -> list[str]:
    """Return the clients' names, with ``client-1`` ... for those without one."""
    for client in clients:
        require(
            client.name is None or isinstance(client.name, str), f"a client's name must be text, not {client.name!r}"
        )
    return [c.name or default for c, default in zip(clients, default_names(len(clients)), strict=True)]


def format_clients(clients: Sequence[Client], keys: Any = None) -> tuple[list[Client], RowFormat]:
    """Check and name the clients and convert their data to :class:`Rows`; return them and their common format."""
    require_clients(clients)
    named = [replace(client, name=name) for client, name in zip(clients, client_names(clients), strict=True)]
    parts = [
        Part(data, f"client {client.name!r}: {domain}", domain == "source")
        for client in named
        for domain, data in client._domains
        if data is not None
    ]
    form, parts = learn_format(parts, keys)
    rows = iter([form.rows(*part) for part in parts])
    formed = []
    for client in named:
        held: dict[str, Any] = {domain: next(rows) for domain, data in client._domains if data is not None}
        formed.append(replace(client, **held))
    return formed, form


def require_clients(clients: object) -> None:
    """Refuse anything but a list of clients."""
    advice = "give a list such as [fedmm.Client(source=(x, y)), fedmm.Client(target=x)]"
    one = "one Client" if isinstance(clients, Client) else f"a {type(clients).__name__}"
    if not isinstance(clients, Sequence) or isinstance(clients, str):
        raise FedmmError(f"clients is {one}; {advice}")
    for client in clients:
        require(isinstance(client, Client), f"clients holds a {type(client).__name__}; {advice}")


def take_stock(clients: Sequence[Client], objective: Objective, classes: int) -> list[ClientData]:
    """Check and return what the clients hold; if the objective does not adapt, only source rows count."""
    require(len(clients) > 0, "a federation needs at least one client")
    clients_data = []
    for client in format_clients(clients)[0]:
        source, target = client.source, client.target if objective.adapts else None
        assert client.name is not None
        if isinstance(source, TensorRows):
            check_labels(source.labels(torch.arange(len(source))), client.name, classes)
        if source is not None or target is not None:
            clients_data.append(ClientData(client.name, source, target, client.weight))
    require(
        any(h.source is not None for h in clients_data),
        "no client holds labelled source rows: there is nothing to learn; give one of them source=(inputs, labels)",
    )
    require(
        not objective.adapts or any(h.target is not None for h in clients_data),
        f"no client holds target rows, to which {objective.name} adapts; give one of them target=inputs, or use the "
        "objective SourceOnly() (source_only)",
    )
    _require_alike(clients_data)
    alphas = mean_one([client_data.alpha for client_data in clients_data], len(clients_data))
    return [replace(client_data, alpha=alpha) for client_data, alpha in zip(clients_data, alphas, strict=True)]


def _require_alike(clients_data: Sequence[ClientData]) -> None:
    """Refuse rows that differ in shape, or a mix of bytes, which are scaled, and other numbers, which are not."""
    parts = [
        (f"client {h.name!r}: {domain}", held.take(torch.zeros(1, dtype=torch.int64)))
        for h in clients_data
        for domain, held in (("source", h.source), ("target", h.target))
        if held is not None
    ]
    first_name, first = parts[0]
    for name, row in parts[1:]:
        require(
            row.shape == first.shape,
            f"{name} holds rows of shape {tuple(row.shape[1:])}, {first_name} of shape {tuple(first.shape[1:])}; "
            "they must agree",
        )
        require(
            (row.dtype == torch.uint8) == (first.dtype == torch.uint8),
            f"{name} holds {row.dtype} values, {first_name} {first.dtype}; give all clients bytes or none",
        )


def check_labels(labels: Tensor, name: str, classes: int) -> None:
    """Refuse labels that are not below the number of classes."""
    highest = int(labels.max())
    if highest >= classes:
        raise FedmmError(
            f"client {name!r}: source holds label {highest}, but there are {classes} classes (0 to {classes - 1})"
        )


_CHUNK = 4096
"""Rows to read at a time."""


def input_sum(client_data: ClientData) -> tuple[float, int]:
    """Return the sum and count of the numbers in a client's training inputs; bytes are scaled to [0, 1]."""
    total, count = 0.0, 0
    for held in (client_data.source, client_data.target):
        for index in torch.split(torch.arange(len(held)), _CHUNK) if held is not None else ():
            assert held is not None
            x = held.take(index)
            total += float(x.double().sum()) / (255.0 if x.dtype == torch.uint8 else 1.0)
            count += x.numel()
    return total, count


def input_mean(clients_data: Sequence[ClientData]) -> float:
    """Return the mean of all clients' training inputs, from one sum and one count per client."""
    sums = [input_sum(client_data) for client_data in sorted(clients_data, key=lambda h: h.name)]
    return sum(total for total, _ in sums) / sum(count for _, count in sums)


def class_counts(held: Rows, classes: int, name: str) -> tuple[int, ...]:
    """Return how many labelled rows of each class a client holds."""
    counts = torch.zeros(classes, dtype=torch.int64)
    for index in torch.split(torch.arange(len(held)), _CHUNK):
        labels = held.labels(index)
        check_labels(labels, name, classes)
        counts += torch.bincount(labels.cpu(), minlength=classes)
    return tuple(counts.tolist())


def class_shares(counts: Mapping[str, Sequence[int]], alphas: Mapping[str, float]) -> tuple[float, ...] | None:
    """Return the mean of the clients' class shares by their weights, as f weighs classes; None without counts.

    counts: by client, its labelled rows of each class. alphas: by client, its weight.
    """
    known = [(alphas[name], counts[name]) for name in sorted(counts) if sum(counts[name])]
    total = math.fsum(alpha for alpha, _ in known)
    each = zip(*([alpha * count / sum(own) for count in own] for alpha, own in known), strict=True)
    return tuple(math.fsum(parts) / total for parts in each) or None


def measure_class_shares(clients_data: Sequence[ClientData], classes: int) -> tuple[float, ...] | None:
    """Return the :func:`class_shares` of clients whose rows are local."""
    labelled = {h.name: h.source for h in clients_data if h.source is not None}
    counts = {name: class_counts(held, classes, name) for name, held in labelled.items()}
    return class_shares(counts, {h.name: h.alpha for h in clients_data})


def batch_split(batch_size: int, source: int, target: int) -> tuple[int, int]:
    """Return how many rows of a batch are source and target: in proportion to the rows held, at least one of each."""
    if not target:
        return batch_size, 0
    if not source:
        return 0, batch_size
    require(batch_size >= 2, "batch_size must be at least 2 for a client that holds both source and target rows")
    share = min(max(round(batch_size * source / (source + target)), 1), batch_size - 1)
    return share, batch_size - share


def domain_odds(
    clients_data: Sequence[ClientData],
    objective: Objective,
    batch_size: int,
    *,
    standing_in: bool,
    told: Mapping[str, tuple[int, int]] | None = None,
) -> float | None:
    """Return the log odds of source to target rows in the adversary's batches, over all clients.

    None if it is no domain classifier or sees only one domain, or if rows only stand in (``standing_in``) for those of
    a site with both domains whose split is unknown. told: by site, the number of rows of each domain in its batches.
    """
    source = target = 0.0
    for client_data in clients_data:
        held = [0 if rows is None else len(rows) for rows in (client_data.source, client_data.target)]
        if standing_in and all(held):
            held = list((told or {}).get(client_data.name, ()))
            if not all(held) or len(held) != 2:
                return None
        rows = batch_split(batch_size, *held)
        source, target = source + client_data.alpha * rows[0], target + client_data.alpha * rows[1]
    return math.log(source / target) if objective.tells_domains and source and target else None
