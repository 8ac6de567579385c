"""Domain adaptation as a federated problem: each client's f_i on the rows it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.objective import SOURCE, TARGET, Objective, RowWeights, row_weights, sam_step
from fedmm.core.problem import FederatedProblem, HeldRows, LocalReport, Statistics, View, WholeRows
from fedmm.core.seeding import key, rows
from fedmm.core.validation import at_least
from fedmm.data.rows import Rows, TensorRows
from fedmm.models.flat import FlatNetwork
from fedmm.models.network import Network
from fedmm.training.clients import ClientData, batch_split, check_labels, domain_odds, input_mean, measure_class_shares

_WHOLE_ROWS = WholeRows()


def adaptation_problem(
    clients_data: Sequence[ClientData],
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
    """Build the federated problem of these clients, and its network for rows in that view.

    mean, shares, odds: the mean of all clients' training inputs, the class shares of their labelled rows and their
        :func:`domain_odds`, if these are not all of the clients.
    """
    at_least("batch_size", batch_size, 1)
    objective.require_classes(network.classes)
    if not objective.needs_class_shares:
        shares = None
    elif shares is None:
        shares = measure_class_shares(clients_data, network.classes)
    objective.require_classes(network.classes, shares)
    if objective.restrained and not objective.source_share:
        if odds is None and mean is None:
            odds = domain_odds(clients_data, objective, batch_size, standing_in=False)
        objective = replace(objective, source_share=float(torch.tensor(odds or 0.0, dtype=torch.float64).sigmoid()))
    sample = clients_data[0].sample
    view.shape(tuple(sample.shape[1:]))
    if network.centre != "train_mean":
        mean = 0.0
    elif mean is None:
        mean = input_mean(clients_data)
    function = FlatNetwork(
        network, objective, view.evaluate(sample), seed=seed, input_mean=mean, dtype=dtype, device=device
    )
    require(
        batch_size > 1 or not function.trains_statistics,
        "batch_size must be at least 2 for a network with batch normalisation (or set batch_norm to 'frozen')",
    )
    moved = _move_clients(clients_data, function.layout.device)
    clients = [
        AdaptationClient(client_data, function, objective, seed=seed, batch_size=batch_size, view=view, shares=shares)
        for client_data in moved
    ]
    problem = FederatedProblem(
        function.layout,
        function.start,
        clients,
        function.statistics,
        share_statistics=network.batch_norm != "local" and function.trains_statistics,
        groups={client_data.name: client_data.domains for client_data in clients_data},
        seed=seed,
        federation=len(clients),
        constraints=objective.constraints,
        held_locally=not objective.constraints,
    )
    return problem, function


def _move_clients(clients_data: Sequence[ClientData], device: torch.device) -> list[ClientData]:
    """Move the clients' data to a device; clients that share a tensor keep sharing it."""
    moved: dict[tuple[object, ...], Tensor] = {}

    def tensor(here: Tensor) -> Tensor:
        key = (here.data_ptr(), here.shape, here.stride(), here.dtype)
        return moved.setdefault(key, here.to(device))

    def rows(held: Rows | None) -> Rows | None:
        if isinstance(held, TensorRows):
            y, index = (None if array is None else tensor(array) for array in (held.y, held.index))
            return TensorRows(tensor(held.x), y, held.what, index)
        return None if held is None else held.to(device)

    return [
        replace(client_data, source=rows(client_data.source), target=rows(client_data.target))
        for client_data in clients_data
    ]


class AdaptationClient:
    """A client's f_i = alpha_i (task loss - nu domain loss + any target loss) on batches of its rows."""

    def __init__(
        self,
        client_data: ClientData,
        network: FlatNetwork,
        objective: Objective,
        *,
        seed: int,
        batch_size: int,
        view: View = _WHOLE_ROWS,
        shares: Sequence[float] | None = None,
    ) -> None:
        self.name = client_data.name
        self.network = network
        self.objective = objective
        self.view = view
        self.seed = seed
        device, dtype = network.layout.device, network.layout.dtype
        self.source, self.target = client_data.source, client_data.target
        held = (0 if self.source is None else len(self.source), 0 if self.target is None else len(self.target))
        self.source_rows, self.target_rows = batch_split(batch_size, *held)
        domain = torch.tensor([SOURCE] * self.source_rows + [TARGET] * self.target_rows, device=device)
        classes = None if shares is None else torch.tensor(shares, dtype=dtype, device=device)
        self.weights: RowWeights = row_weights(domain, torch.ones(batch_size, dtype=dtype, device=device), classes)
        self.alpha = client_data.alpha
        self.field_scale = (
            network.layout.signs() * network.layout.join_all(objective.gradient_scale) * client_data.alpha
        )

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> AdaptationRound:
        return AdaptationRound(self, t, rounds, steps, statistics)

    def indices(self, domain: str, held: int, t: int, steps: int, count: int) -> Tensor:
        """Return the rows of each local step of round t, int64 ``[steps, count]``, from seed, name and round alone."""
        device = self.network.layout.device
        return rows(self._key_parts(domain), held, t * steps * count, steps * count, device).view(steps, count)

    def _key_parts(self, domain: str) -> tuple[int | str, ...]:
        return (self.seed, "rows", self.name, domain)

    def dropout_key(self, t: int, step: int) -> int:
        """Return the key of the dropout masks in a local step."""
        return key(self.seed, "dropout", self.name, t, step)

    def view_key(self, t: int, step: int) -> int:
        """Return the key of the random view of a local step's batch."""
        return key(self.seed, "view", self.name, t, step)

    @property
    def held(self) -> list[HeldRows]:
        """The client's rows, for engines that run many clients as one program; they must be in memory."""
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
        """Return the task loss's gradient after a SAM step minus that at z; running statistics stay those at z."""
        client, network = self._client, self._client.network
        statistics = network.read_statistics()
        plain = network.gradient(task).clone()
        ascended = z + sam_step(plain, client.objective.sam_radius)
        outputs = network.outputs(ascended, x, self._dropout_key(step))
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
        """Return x ``[rows, ...]`` with source rows first, and labels ``[rows]``, 0 for target rows."""
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
