"""``fedmm.adapt``: federated domain adaptation of a network over the clients' own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm
from fedmm.core.checks import at_least
from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError, require
from fedmm.core.objective import Objective
from fedmm.core.problem import Statistics
from fedmm.data.holdings import as_rows
from fedmm.engines.in_process import InProcess
from fedmm.experiment.adaptation import Client, Holding, adaptation_problem, take_stock
from fedmm.experiment.history import History, Row
from fedmm.experiment.predictor import Predictor
from fedmm.experiment.progress import RoundProgress
from fedmm.experiment.training import Status, Training, train
from fedmm.models.functional import FunctionalNetwork
from fedmm.models.network import Network


class Adapted(Predictor):
    """A trained model and how it came about.

    history: one row a round: accuracies on the validation sets, losses, drift, consensus gap, bytes, seconds.
    status: ``completed``, or ``interrupted`` by Ctrl-C (the model is then that of the last finished round).
    state: the federation after the last round, with every client's own state.
    """

    def __init__(self, function: FunctionalNetwork, statistics: Statistics, training: Training) -> None:
        super().__init__(function, training.state.z, statistics)
        self.state: FederatedState = training.state
        self.history: History = training.history
        self.status: Status = training.status


def adapt(
    clients: Sequence[Client],
    model: Network,
    objective: Objective,
    algorithm: Algorithm,
    rounds: int,
    *,
    validation: Any = None,
    evaluate_every: int = 1,
    batch_size: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: bool = True,
    on_round: Callable[[Row], None] | None = None,
) -> Adapted:
    """Train one model that works on the target, over clients whose data stays where it is.

    validation: labelled rows to watch, never to train on or choose by: (x, y) of the target, or a dict such as
        ``{"target": (x, y), "source": (x, y)}``; the history then has ``target_accuracy`` and so on.
    evaluate_every: rounds between evaluations; the last round is always evaluated.
    batch_size: rows of a local step, split in proportion to a client's source and target rows.
    seed: decides heads' first weights, batches, dropout masks and random maps; one seed, one result.
    progress: a bar on the terminal. on_round: called with each round's row of the history.
    """
    at_least("rounds", rounds, 0)
    at_least("evaluate_every", evaluate_every, 1)
    at_least("seed", seed, 0)
    watched = _validation(validation, model.classes)
    holdings = take_stock(clients, objective, model.classes)
    problem, function = adaptation_problem(
        holdings, model, objective, seed=seed, batch_size=batch_size, dtype=dtype, device=device
    )
    engine = InProcess(problem, algorithm, rounds)
    watched = {name: (x.to(device), y.to(device)) for name, (x, y) in watched.items()}

    def evaluate(state: FederatedState) -> dict[str, float]:
        return {
            f"{name}_accuracy": accuracy(
                function, state.z, prediction_statistics(state, problem.share_statistics, holdings), x, y
            )
            for name, (x, y) in watched.items()
        }

    with RoundProgress(f"{algorithm.name} {objective.name}", rounds, show=progress) as bar:

        def after_round(row: Row) -> None:
            bar(row)
            if on_round:
                on_round(row)

        training = train(engine, rounds, evaluate=evaluate, evaluate_every=evaluate_every, on_round=after_round)
    statistics = prediction_statistics(training.state, problem.share_statistics, holdings)
    adapted = Adapted(function, statistics, training)
    if training.error:
        training.error.partial = adapted
        raise training.error
    return adapted


def accuracy(function: FunctionalNetwork, z: Tensor, statistics: Statistics, x: Tensor, y: Tensor) -> float:
    """The share of rows whose predicted class is their label."""
    return float((function.evaluate(z, statistics, x).logits.argmax(dim=-1) == y).double().mean())


def prediction_statistics(state: FederatedState, shared: bool, holdings: Sequence[Holding]) -> Statistics:
    """The running statistics for predictions: the server's or, where clients keep their own, the target clients' mean."""
    if shared or not state.statistics:
        return state.statistics
    targets = [h.name for h in holdings if h.target is not None] or [h.name for h in holdings]
    own = [state.client_statistics[name] for name in sorted(targets)]
    return {
        name: torch.stack([s[name] for s in own]).double().mean(dim=0).to(tensor.dtype)
        for name, tensor in state.statistics.items()
    }


def _validation(validation: Any, classes: int) -> dict[str, tuple[Tensor, Tensor]]:
    if validation is None:
        return {}
    named = validation if isinstance(validation, Mapping) else {"target": validation}
    watched = {}
    for name, data in named.items():
        if not isinstance(name, str):
            raise FedmmError(f"validation sets are named by words such as 'target', not {name!r}")
        held = as_rows(data, f"validation {name!r}", labelled=True)
        index = torch.arange(len(held))
        labels = held.labels(index)
        require(
            int(labels.max()) < classes, f"validation {name!r} holds label {int(labels.max())} of {classes} classes"
        )
        watched[name] = (held.take(index), labels)
    return watched
