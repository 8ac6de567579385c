"""Domain adaptation as a federated problem: who holds which rows, and each client's f_i on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.objective import SOURCE, TARGET, Objective, RowWeights, row_weights, sam_step
from fedmm.core.problem import FederatedProblem, HeldRows, LocalReport, Statistics, View, WholeRows
from fedmm.core.seeding import key, rows
from fedmm.core.validation import at_least
from fedmm.data.row_format import Part, RowFormat, learn_format
from fedmm.data.rows import Rows, TensorRows, has_length
from fedmm.models.flat import FlatNetwork
from fedmm.models.network import Network
from fedmm.training.solve import default_names, mean_one

_WHOLE_ROWS = WholeRows()


@dataclass(frozen=True)
class Client:
    """A site and what it holds: labelled source rows, unlabelled target rows, or both.

    source: (inputs, labels) as arrays, tensors, lists or a DataFrame with its labels; or a Dataset or DataLoader of
        pairs (x, y) or of dicts like ``{"image": ..., "label": ...}``. Labels number the classes from 0, or are words.
    target: inputs in any of these forms; labels in a Dataset are not looked at.
    name: its random draws and its place in every sum follow from it; by default ``client-1`` ... as listed.
    weight: the paper's alpha_i; the clients' weights are scaled to mean 1.
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
    """What data is, without its values."""
    if isinstance(data, tuple):
        return f"({', '.join(map(_briefly, data))})"
    shape = getattr(data, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(data).__name__}{list(shape)}"
    size = f" of {len(data)}" if isinstance(data, Sized) and has_length(data) else ""
    return f"<{type(data).__name__}{size}>"


@dataclass(frozen=True)
class ClientData:
    """A client's rows, checked."""

    name: str
    source: Rows | None
    target: Rows | None
    alpha: float

    @property
    def domains(self) -> str:
        """Which domains are held: clients that hold the same ones are a group."""
        held = {"source": self.source, "target": self.target}
        return " and ".join(domain for domain, rows in held.items() if rows is not None)

    @property
    def sample(self) -> Tensor:
        """The first rows, up to two."""
        held = self.source if self.source is not None else self.target
        assert held is not None
        return held.take(torch.arange(min(2, len(held))))


def client_names(clients: Sequence[Client]) -> list[str]:
    """The clients' names, with ``client-1`` ... for those without."""
    for client in clients:
        require(
            client.name is None or isinstance(client.name, str), f"a client's name must be text, not {client.name!r}"
        )
    return [c.name or default for c, default in zip(clients, default_names(len(clients)), strict=True)]


def format_clients(clients: Sequence[Client], keys: Any = None) -> tuple[list[Client], RowFormat]:
    """The clients with their data as :class:`Rows`, checked and named, and what it has in common."""
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
    """Refuse what is not a list of clients."""
    advice = "give a list such as [fedmm.Client(source=(x, y)), fedmm.Client(target=x)]"
    one = "one Client" if isinstance(clients, Client) else f"a {type(clients).__name__}"
    if not isinstance(clients, Sequence) or isinstance(clients, str):
        raise FedmmError(f"clients is {one}; {advice}")
    for client in clients:
        require(isinstance(client, Client), f"clients holds a {type(client).__name__}; {advice}")


def take_stock(clients: Sequence[Client], objective: Objective, classes: int) -> list[ClientData]:
    """Check what the clients hold; with an objective that adapts to nothing, only their source rows count."""
    require(len(clients) > 0, "a federation needs at least one client")
    holdings = []
    for client in format_clients(clients)[0]:
        source, target = client.source, client.target if objective.adapts else None
        assert client.name is not None
        if isinstance(source, TensorRows):
            check_labels(source.labels(torch.arange(len(source))), client.name, classes)
        if source is not None or target is not None:
            holdings.append(ClientData(client.name, source, target, client.weight))
    require(
        any(h.source is not None for h in holdings),
        "no client holds labelled source rows: there is nothing to learn; give one of them source=(inputs, labels)",
    )
    require(
        not objective.adapts or any(h.target is not None for h in holdings),
        f"no client holds target rows, to which {objective.name} adapts; give one of them target=inputs, or use the "
        "objective SourceOnly() (source_only)",
    )
    _require_alike(holdings)
    alphas = mean_one([holding.alpha for holding in holdings], len(holdings))
    return [replace(holding, alpha=alpha) for holding, alpha in zip(holdings, alphas, strict=True)]


def _require_alike(holdings: Sequence[ClientData]) -> None:
    """All rows must have one shape, and be bytes everywhere or nowhere: bytes are scaled, other numbers are not."""
    parts = [
        (f"client {h.name!r}: {domain}", held.take(torch.zeros(1, dtype=torch.int64)))
        for h in holdings
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
    """Refuse labels beyond the number of classes."""
    highest = int(labels.max())
    if highest >= classes:
        raise FedmmError(
            f"client {name!r}: source holds label {highest}, but there are {classes} classes (0 to {classes - 1})"
        )


def input_sum(holding: ClientData, chunk: int = 4096) -> tuple[float, int]:
    """The sum and the count of a client's training inputs, bytes scaled to [0, 1]."""
    total, count = 0.0, 0
    for held in (holding.source, holding.target):
        for index in torch.split(torch.arange(len(held)), chunk) if held is not None else ():
            assert held is not None
            x = held.take(index)
            total += float(x.double().sum()) / (255.0 if x.dtype == torch.uint8 else 1.0)
            count += x.numel()
    return total, count


def input_mean(holdings: Sequence[ClientData]) -> float:
    """The mean of all clients' training inputs, from one sum and one count per client."""
    sums = [input_sum(holding) for holding in sorted(holdings, key=lambda h: h.name)]
    return sum(total for total, _ in sums) / sum(count for _, count in sums)


def class_counts(held: Rows, classes: int, name: str, chunk: int = 4096) -> tuple[int, ...]:
    """How many labelled rows a client holds of each class."""
    counts = torch.zeros(classes, dtype=torch.int64)
    for index in torch.split(torch.arange(len(held)), chunk):
        labels = held.labels(index)
        check_labels(labels, name, classes)
        counts += torch.bincount(labels.cpu(), minlength=classes)
    return tuple(counts.tolist())


def class_shares(counts: Mapping[str, Sequence[int]], alphas: Mapping[str, float]) -> tuple[float, ...] | None:
    """The clients' shares of each class, averaged by their weights, which is that of f; None where nobody counted.

    counts: by client, its labelled rows of each class. alphas: by client, its weight.
    """
    known = [(alphas[name], counts[name]) for name in sorted(counts) if sum(counts[name])]
    total = math.fsum(alpha for alpha, _ in known)
    each = zip(*([alpha * count / sum(own) for count in own] for alpha, own in known), strict=True)
    return tuple(math.fsum(parts) / total for parts in each) or None


def measure_class_shares(holdings: Sequence[ClientData], classes: int) -> tuple[float, ...] | None:
    """The :func:`class_shares` of clients whose rows are here."""
    labelled = {h.name: h.source for h in holdings if h.source is not None}
    counts = {name: class_counts(held, classes, name) for name, held in labelled.items()}
    return class_shares(counts, {h.name: h.alpha for h in holdings})


def adaptation_problem(
    holdings: Sequence[ClientData],
    network: Network,
    objective: Objective,
    *,
    seed: int,
    batch_size: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    view: View = _WHOLE_ROWS,
    mean: float | None = None,
    shares: Sequence[float] | None = None,
    odds: float | None = None,
) -> tuple[FederatedProblem, FlatNetwork]:
    """The federated problem of these clients, and its network as a function of rows in that view.

    mean: of all clients' training inputs, shares: of each class among their labelled rows, odds: their
        :func:`domain_odds`, where these are not all of the clients.
    """
    at_least("batch_size", batch_size, 1)
    objective.require_classes(network.classes)
    if not objective.needs_class_shares:
        shares = None
    elif shares is None:
        shares = measure_class_shares(holdings, network.classes)
    objective.require_classes(network.classes, shares)
    if objective.restrained and not objective.source_share:
        if odds is None and mean is None:
            odds = domain_odds(holdings, objective, batch_size, standing_in=False)
        require(
            odds is not None,
            "source_share must be given for restrained = true where no one knows how many rows of either domain the "
            "clients' batches hold: the share of source rows among them, such as 0.5",
        )
        objective = replace(objective, source_share=float(torch.tensor(odds, dtype=torch.float64).sigmoid()))
    sample = holdings[0].sample
    view.shape(tuple(sample.shape[1:]))
    if network.centre != "train_mean":
        mean = 0.0
    elif mean is None:
        mean = input_mean(holdings)
    function = FlatNetwork(
        network, objective, view.evaluate(sample), seed=seed, input_mean=mean, dtype=dtype, device=device
    )
    require(
        batch_size > 1 or not function.trains_statistics,
        "batch_size must be at least 2 for a network with batch normalisation (or set batch_norm to 'frozen')",
    )
    moved = _moved(holdings, function.layout.device)
    clients = [
        AdaptationClient(holding, function, objective, seed=seed, batch_size=batch_size, view=view, shares=shares)
        for holding in moved
    ]
    problem = FederatedProblem(
        function.layout,
        function.start,
        clients,
        function.statistics,
        share_statistics=network.batch_norm != "local" and function.trains_statistics,
        groups={holding.name: holding.domains for holding in holdings},
        seed=seed,
        federation=len(clients),
        constraints=objective.constraints,
        held_locally=not objective.constraints,
    )
    return problem, function


def _moved(holdings: Sequence[ClientData], device: torch.device) -> list[ClientData]:
    """The holdings on a device; clients that share a tensor go on sharing it there."""
    there: dict[tuple[object, ...], Tensor] = {}

    def tensor(here: Tensor) -> Tensor:
        key = (here.data_ptr(), here.shape, here.stride(), here.dtype)
        return there.setdefault(key, here.to(device))

    def rows(held: Rows | None) -> Rows | None:
        if isinstance(held, TensorRows):
            y, index = (None if each is None else tensor(each) for each in (held.y, held.index))
            return TensorRows(tensor(held.x), y, held.what, index)
        return None if held is None else held.to(device)

    return [replace(holding, source=rows(holding.source), target=rows(holding.target)) for holding in holdings]


def batch_split(batch_size: int, source: int, target: int) -> tuple[int, int]:
    """How many of a batch's rows are source and target: in proportion to what is held, at least one of each kind."""
    if not target:
        return batch_size, 0
    if not source:
        return 0, batch_size
    require(batch_size >= 2, "batch_size must be at least 2 for a client that holds both source and target rows")
    share = min(max(round(batch_size * source / (source + target)), 1), batch_size - 1)
    return share, batch_size - share


def domain_odds(
    holdings: Sequence[ClientData],
    objective: Objective,
    batch_size: int,
    *,
    standing_in: bool,
    told: Mapping[str, tuple[int, int]] | None = None,
) -> float | None:
    """The log of how much more source than target the adversary's batches hold, over all clients.

    None where it is no domain classifier, sees one domain alone, or where rows that stand in for those of a site with
    both domains (``standing_in``) do not tell. told: by site, how many rows of its batches are of each domain.
    """
    source = target = 0.0
    for holding in holdings:
        held = [0 if rows is None else len(rows) for rows in (holding.source, holding.target)]
        if standing_in and all(held):
            held = list((told or {}).get(holding.name, ()))
            if not all(held) or len(held) != 2:
                return None
        rows = batch_split(batch_size, *held)
        source, target = source + holding.alpha * rows[0], target + holding.alpha * rows[1]
    return math.log(source / target) if objective.tells_domains and source and target else None


class AdaptationClient:
    """A client's f_i = alpha_i (task loss - nu domain loss + any target loss) on batches of its rows."""

    def __init__(
        self,
        holding: ClientData,
        network: FlatNetwork,
        objective: Objective,
        *,
        seed: int,
        batch_size: int,
        view: View = _WHOLE_ROWS,
        shares: Sequence[float] | None = None,
    ) -> None:
        self.name = holding.name
        self.network = network
        self.objective = objective
        self.view = view
        self.seed = seed
        device, dtype = network.layout.device, network.layout.dtype
        self.source, self.target = holding.source, holding.target
        held = (0 if self.source is None else len(self.source), 0 if self.target is None else len(self.target))
        self.source_rows, self.target_rows = batch_split(batch_size, *held)
        domain = torch.tensor([SOURCE] * self.source_rows + [TARGET] * self.target_rows, device=device)
        classes = None if shares is None else torch.tensor(shares, dtype=dtype, device=device)
        self.weights: RowWeights = row_weights(domain, torch.ones(batch_size, dtype=dtype, device=device), classes)
        self.alpha = holding.alpha
        self.field_scale = network.layout.signs() * network.layout.join_all(objective.gradient_scale) * holding.alpha

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> AdaptationRound:
        return AdaptationRound(self, t, rounds, steps, statistics)

    def indices(self, domain: str, held: int, t: int, steps: int, count: int) -> Tensor:
        """The rows of each local step of round t, int64 ``[steps, count]``: a function of seed, name and round."""
        device = self.network.layout.device
        return rows(self._key_parts(domain), held, t * steps * count, steps * count, device).view(steps, count)

    def _key_parts(self, domain: str) -> tuple[int | str, ...]:
        return (self.seed, "rows", self.name, domain)

    def dropout_key(self, t: int, step: int) -> int:
        """The key of the dropout masks in a local step."""
        return key(self.seed, "dropout", self.name, t, step)

    def view_key(self, t: int, step: int) -> int:
        """The key of what is random in the view of a local step's batch."""
        return key(self.seed, "view", self.name, t, step)

    @property
    def held(self) -> list[HeldRows]:
        """Its rows, for engines that run many clients as one program; they must be in memory."""
        parts = (("source", self.source, self.source_rows), ("target", self.target, self.target_rows))
        held = []
        for domain, own, count in parts:
            if own is not None:
                if not isinstance(own, TensorRows):
                    raise FedmmError(
                        f"client {self.name!r} reads its {domain} rows from a Dataset: they are not in memory"
                    )
                held.append(HeldRows(own.x, own.y, own.index, self._key_parts(domain), count))
        return held


class AdaptationRound:
    """One client's local steps in one round."""

    def __init__(self, client: AdaptationClient, t: int, rounds: int, steps: int, statistics: Statistics) -> None:
        self._client = client
        self._t = t
        self._nu = client.objective.nu_in(t, rounds)
        self._source = self._target = None
        self._labels = client.weights.domain.new_zeros(steps, client.source_rows + client.target_rows)
        if client.source is not None:
            self._source = client.indices("source", len(client.source), t, steps, client.source_rows)
            if isinstance(client.source, TensorRows):
                self._labels[:, : client.source_rows] = client.source.labels(self._source)
        if client.target is not None:
            self._target = client.indices("target", len(client.target), t, steps, client.target_rows)
        self._losses: dict[int, tuple[Tensor, Tensor]] = {}
        self._first_value: Tensor | None = None
        self._shown: tuple[int, Tensor, Tensor] | None = None
        client.network.train(statistics)

    def field(self, z: Tensor, step: int) -> Tensor:
        if self._shown is not None and self._shown[0] == step:
            with self._client.network.keep_statistics():
                return self._field(z, *self._shown)
        self._shown = (step, *self._batch(step))
        return self._field(z, *self._shown)

    def _field(self, z: Tensor, step: int, x: Tensor, labels: Tensor) -> Tensor:
        client = self._client
        outputs = client.network.outputs(z, x, self._dropout_key(step))
        task, domain = client.objective.losses(outputs, labels, client.weights)
        self._losses.setdefault(step, (task.detach(), domain.detach()))
        value = task - self._nu * domain
        target = client.objective.target_losses(outputs, client.weights)
        if target is not None:
            value = value + client.objective.target_weight * target
        if self._first_value is None:
            self._first_value = value.detach()
        if client.objective.sam_radius and client.weights.has_source:
            gradient = client.network.gradient(value, keep_graph=True).clone()
            return (gradient + self._sharpening(z, step, x, labels, task)) * client.field_scale
        return client.network.gradient(value) * client.field_scale

    def _sharpening(self, z: Tensor, step: int, x: Tensor, labels: Tensor, task: Tensor) -> Tensor:
        """The task loss's gradient after a SAM step less that at z; running statistics stay those at z."""
        client, network = self._client, self._client.network
        statistics = network.read_statistics()
        plain = network.gradient(task).clone()
        there = z + sam_step(plain, client.objective.sam_radius)
        outputs = network.outputs(there, x, self._dropout_key(step))
        sharpened = network.gradient(client.objective.task_loss(outputs, labels, client.weights))
        network.train(statistics)
        return sharpened - plain

    def first_value(self) -> Tensor:
        assert self._first_value is not None
        return self._client.alpha * self._first_value

    def close(self) -> LocalReport:
        task, domain = (float(torch.stack(values).mean()) for values in zip(*self._losses.values(), strict=True))
        metrics = {"loss": task - self._nu * domain, "domain_loss": domain}
        if self._client.source is not None:
            metrics["task_loss"] = task
        return LocalReport(metrics, self._client.network.read_statistics())

    def _dropout_key(self, step: int) -> int:
        client = self._client
        return client.dropout_key(self._t, step) if client.network.has_dropout else 0

    def _view_key(self, step: int) -> int:
        client = self._client
        return client.view_key(self._t, step) if client.view.random else 0

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        """x ``[rows, ...]`` with source rows first, and labels ``[rows]``, 0 for target rows."""
        client, parts = self._client, []
        if client.source is not None and self._source is not None:
            parts.append(client.source.take(self._source[step]))
            if not isinstance(client.source, TensorRows):
                labels = client.source.labels(self._source[step])
                check_labels(labels, client.name, client.network.classes)
                self._labels[step, : client.source_rows] = labels
        if client.target is not None and self._target is not None:
            parts.append(client.target.take(self._target[step]))
        x = parts[0] if len(parts) == 1 else torch.cat(parts)
        shown = client.view.train(x, torch.tensor(self._view_key(step), device=x.device))
        return client.network.as_input(shown), self._labels[step]
