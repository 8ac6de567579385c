"""Problems with known solutions, and shortcuts to run them, shared by all tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import fedmm
from fedmm.core.aggregation import Mean, aggregate, groups_of
from fedmm.core.algorithm import Aggregated, Algorithm, State, first_exchange
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.layout import Layout
from fedmm.core.objective import AdversaryShape, Objective, Outputs
from fedmm.core.problem import FederatedProblem, LocalReport, Statistics
from fedmm.core.schedules import DannDecay
from fedmm.engines.in_process import InProcess
from fedmm.training.adaptation import Adaptation
from fedmm.training.problem import AdaptationClient

FLOAT64 = torch.float64


def known_bug(what: str, raises: type[BaseException] | tuple[type[BaseException], ...]) -> pytest.MarkDecorator:
    """Mark a test that shows a bug in src; strict, so that the mark must be removed once the bug is fixed."""
    return pytest.mark.xfail(reason=f"bug in src: {what}", raises=raises, strict=True)


NOTHING_RAISED = pytest.fail.Exception
"""What ``pytest.raises`` raises if nothing is raised inside it."""


def golden(name: str) -> dict[str, Any]:
    """Read a file of recorded values; its ``about`` says how they were computed."""
    return json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Games ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Quadratic:
    """f(x, y) = 1/2 x'A x + x'B y - 1/2 y'C y + a'x - c'y, so that F(x, y) = (A x + B y + a, -B'x + C y + c)."""

    A: Tensor
    B: Tensor
    C: Tensor
    a: Tensor
    c: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * x @ self.A @ x + x @ self.B @ y - 0.5 * y @ self.C @ y + self.a @ x - self.c @ y

    @cached_property
    def matrix(self) -> Tensor:
        return torch.cat([torch.cat([self.A, self.B], 1), torch.cat([-self.B.T, self.C], 1)])

    @cached_property
    def offset(self) -> Tensor:
        return torch.cat([self.a, self.c])

    def field(self, z: Tensor) -> Tensor:
        return self.matrix @ z + self.offset

    def value(self, z: Tensor) -> Tensor:
        return self(z[: len(self.a)], z[len(self.a) :])


@dataclass(frozen=True)
class FieldClient:
    """A client for an engine, with its signed field in closed form."""

    name: str
    signed_field: Callable[[Tensor], Tensor]
    value: Callable[[Tensor], Tensor] | None = None

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> FieldClient:
        return self if self.value is None else ValuedField(self.name, self.signed_field, self.value)

    def field(self, z: Tensor, step: int) -> Tensor:
        return self.signed_field(z)

    def close(self) -> LocalReport:
        return LocalReport()


@dataclass(frozen=True)
class ValuedField(FieldClient):
    """A round of a client that also reports the value of its function."""

    first: list[Tensor] = field(default_factory=list)

    def field(self, z: Tensor, step: int) -> Tensor:
        assert self.value is not None
        if not self.first:
            self.first.append(self.value(z))
        return self.signed_field(z)

    def first_value(self) -> Tensor:
        return self.first[0]


@dataclass(frozen=True)
class Game:
    """A game of quadratic clients that start at 0."""

    clients: Sequence[Quadratic]

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.clients[0].a), len(self.clients[0].c)

    @property
    def names(self) -> list[str]:
        return [f"client-{number}" for number in range(len(self.clients))]

    @property
    def layout(self) -> Layout:
        return Layout({"omega": (self.sizes[0],)}, {"psi": (self.sizes[1],)}, dtype=FLOAT64, bare=(True, True))

    @property
    def start(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.sizes[0], dtype=FLOAT64), torch.zeros(self.sizes[1], dtype=FLOAT64)

    @cached_property
    def saddle(self) -> Tensor:
        """The point at which the mean of the signed fields vanishes."""
        matrix = torch.stack([client.matrix for client in self.clients]).mean(0)
        offset = torch.stack([client.offset for client in self.clients]).mean(0)
        return torch.linalg.solve(matrix, -offset)

    def problem(self) -> FederatedProblem:
        clients = [FieldClient(name, q.field, q.value) for name, q in zip(self.names, self.clients, strict=True)]
        return FederatedProblem(self.layout, torch.cat(self.start), clients)

    def play(self, algorithm: Algorithm, rounds: int) -> FederatedState:
        """Return the federation's state after ``rounds`` rounds."""
        *_, (state, _) = played(InProcess(self.problem(), algorithm, rounds), rounds)
        return state

    def error(self, state: FederatedState) -> float:
        """Return the server's distance from the saddle, relative to the saddle's norm."""
        return float((state.z - self.saddle).norm() / self.saddle.norm())


def all_counted(algorithm: Algorithm, uploads: State, sent: State, scalars: State | None = None) -> Aggregated:
    """Aggregate the uploads ``[..., clients, size]`` and the reported scalars of all clients."""
    groups = groups_of([""] * uploads["z"].shape[-2], {}, uploads["z"].device)
    weights = algorithm.scalar_weights(scalars) if scalars else None
    came = aggregate(Mean(), uploads, sent, groups, 1.0, algorithm.accumulates, weights=weights)
    if not scalars:
        return came
    everyone = torch.ones(uploads["z"].shape[:-1], dtype=torch.bool, device=uploads["z"].device)
    return came._replace(scalars=scalars, counted=everyone)


def played(engine: Any, rounds: int) -> Iterator[tuple[FederatedState, RoundRecord]]:
    """Yield each round's state and record."""
    state = engine.start()
    for _ in range(rounds):
        state, record = engine.run_round(state)
        yield state, record


def golden_game() -> Game:
    clients = golden("games")["clients"]
    return Game([Quadratic(**{key: torch.tensor(c[key], dtype=FLOAT64) for key in "ABCac"}) for c in clients])


def random_game(seed: int, clients: int = 3, sizes: tuple[int, int] = (3, 2), shared_saddle: bool = False) -> Game:
    """Return a strongly-convex-strongly-concave game: the eigenvalues of A and C lie in [1, 3], those of F's Jacobian
    have real parts of at least 1. shared_saddle: every client's field is exactly 0 at the same point.
    """
    random = generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=FLOAT64, generator=random)

    def definite(size: int) -> Tensor:
        basis, _ = torch.linalg.qr(normal(size, size))
        values = 1.0 + 2.0 * torch.rand(size, dtype=FLOAT64, generator=random)
        matrix = basis @ torch.diag(values) @ basis.T
        return (matrix + matrix.T) / 2

    def quadratic() -> Quadratic:
        m, n = sizes
        return Quadratic(definite(m), 0.5 * normal(m, n), definite(n), 2.0 * normal(m), 2.0 * normal(n))

    game = Game([quadratic() for _ in range(clients)])
    if shared_saddle:
        point = (256.0 * normal(sum(sizes))).round() / 256.0  # so that sums of a few points are exact
        return Game([_centred(client, point) for client in game.clients])
    return game


@dataclass(frozen=True, eq=False)
class CentredQuadratic(Quadratic):
    """A quadratic centred at its saddle, where its field is exactly 0."""

    saddle: Tensor

    def field(self, z: Tensor) -> Tensor:
        return self.matrix @ (z - self.saddle)


def _centred(quadratic: Quadratic, saddle: Tensor) -> CentredQuadratic:
    offset = -quadratic.matrix @ saddle
    split = len(quadratic.a)
    return CentredQuadratic(quadratic.A, quadratic.B, quadratic.C, offset[:split], offset[split:], saddle)


games = st.builds(
    random_game,
    seed=st.integers(0, 2**31),
    clients=st.integers(1, 4),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
"""Random strongly-convex-strongly-concave games."""


# Algorithms -----------------------------------------------------------------------------------------------------------

OPTIONS = {
    "lr_min": 0.02,
    "lr_max": 0.03,
    "lr_schedule": DannDecay(),
    "penalty_min": 0.7,
    "penalty_max": 1.3,
    "dual_decay": 0.9,
    "local_steps": 3,
    "server_lr": 0.75,
    "momentum": 0.6,
    "snapshot_every": 2,
    "inner_steps": 2,
    "mean_steps": 1,
    "stage_rounds": 2,
    "lr_weights": 0.04,
    "q": 0.7,
    "regulariser": "chi_square",
    "regulariser_weight": 0.3,
}
"""A non-default value for every option of any algorithm, so that no option goes untested."""


def takes_noise(kind: type[Algorithm]) -> bool:
    """Return whether updates may carry noise: not with reports, nor if a method that is not plain sends more than z."""
    algorithm, layout = kind(), Layout({"omega": (1,)}, {"psi": (1,)})
    if algorithm.reports:
        return False
    return algorithm.plain or len(first_exchange(algorithm, layout, torch.zeros(2))[0]) == 1


def with_options(kind: type[Algorithm], **changes: Any) -> Algorithm:
    """Return an algorithm with OPTIONS and ``changes`` for the options that it has; others are ignored."""
    names = {option.name for option in fields(kind)}
    return kind(**{name: value for name, value in (OPTIONS | changes).items() if name in names})


# Adaptation -----------------------------------------------------------------------------------------------------------

CLASSES = 3
WIDTH = 4


def rows(seed: int, count: int = 24, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, WIDTH, generator=generator(seed), dtype=FLOAT64).to(dtype)


def labels(seed: int, count: int = 24) -> Tensor:
    return torch.randint(0, CLASSES, (count,), generator=generator(seed))


def source_client(name: str | None = "source", seed: int = 1, **options: Any) -> fedmm.Client:
    return fedmm.Client(source=(rows(seed), labels(seed)), name=name, **options)


def target_client(name: str | None = "target", seed: int = 2, **options: Any) -> fedmm.Client:
    return fedmm.Client(target=rows(seed), name=name, **options)


def mixed_client(name: str | None = "mixed", seed: int = 3, **options: Any) -> fedmm.Client:
    return fedmm.Client(source=(rows(seed), labels(seed)), target=rows(seed + 1, 12), name=name, **options)


def features(*layers: nn.Module) -> nn.Module:
    """Return the given layers, by default one hidden layer with fixed weights."""
    if layers:
        return nn.Sequential(*layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh())


def network(*layers: nn.Module, **options: Any) -> fedmm.Network:
    return fedmm.Network(features(*layers), CLASSES, **{"adversary_hidden": (5,)} | options)


def _fitting(
    objective: Objective, clients: Sequence[fedmm.Client] | None, model: fedmm.Network | None
) -> tuple[Sequence[fedmm.Client], fedmm.Network]:
    """Return clients and network, by default small ones, with the number of classes that the objective requires."""
    clients = [source_client(), target_client()] if clients is None else clients
    model = network() if model is None else model
    if not isinstance(objective, Objective) or objective.class_count is None:
        return clients, model
    few = [
        c if c.source is None else replace(c, source=(c.source[0], c.source[1] % objective.class_count))
        for c in clients
    ]
    return few, replace(model, classes=objective.class_count)


def adapt(
    clients: Sequence[fedmm.Client] | None = None,
    model: fedmm.Network | None = None,
    objective: Objective | None = None,
    algorithm: Algorithm | None = None,
    rounds: int = 2,
    **options: Any,
) -> fedmm.Adapted:
    """Call ``fedmm.adapt``, by default on a small problem."""
    objective = fedmm.DANN() if objective is None else objective
    return fedmm.adapt(
        *_fitting(objective, clients, model),
        objective,
        fedmm.FedMM(lr_min=0.1, lr_max=0.1, local_steps=2) if algorithm is None else algorithm,
        rounds,
        **{"batch_size": 8, "progress": False} | options,
    )


def train_options(dtype: torch.dtype = torch.float32, **options: Any) -> fedmm.TrainOptions:
    """Return training options for a torch dtype."""
    return fedmm.TrainOptions(dtype=str(dtype).removeprefix("torch."), **options)  # type: ignore[arg-type]


def untrained(
    clients: Sequence[fedmm.Client] | None = None,
    model: fedmm.Network | None = None,
    objective: Objective | None = None,
    **options: Any,
) -> fedmm.Predictor:
    """Return the model that :func:`adapt` with the same arguments starts from."""
    objective = objective or fedmm.DANN()
    return Adaptation(
        *_fitting(objective, clients, model),
        objective,
        fedmm.FedMM(),
        train_options(**{"rounds": 1, "batch_size": 8} | options),
    ).before()


class InOrder(AdaptationClient):
    """A client that takes its rows in stored order, continuing across rounds, after the first ``skip`` rows."""

    skip = 0

    def indices(self, domain: str, held: int, t: int, steps: int, count: int) -> Tensor:
        first = self.skip + t * steps * count
        return (torch.arange(first, first + steps * count) % held).view(steps, count)


def random_outputs(
    objective: Objective, count: int, *, lead: tuple[int, ...] = (), dtype: torch.dtype = FLOAT64, seed: int = 0
) -> Outputs:
    """Return random network outputs for ``count`` rows, as leaf tensors that require gradients."""
    random = generator(seed)
    shape = objective.adversary_shape(WIDTH, CLASSES) or AdversaryShape(WIDTH, CLASSES)

    def leaf(width: int) -> Tensor:
        return torch.randn(*lead, count, width, generator=random, dtype=FLOAT64).to(dtype).requires_grad_()

    return Outputs(leaf(WIDTH), leaf(CLASSES), leaf(shape.width))


WORST_AUC: dict[str, Any] = {
    "data": {"name": "unbalanced", "negatives_per_positive": 4},
    "partition": {"name": "label_sorted", "clients": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "objective": {"name": "auc"},
    "algorithm": {"name": "fedmm_agnostic", "lr_min": 0.05, "lr_max": 0.05, "local_steps": 2, "lr_weights": 0.1},
    "run": {"rounds": 3, "batch_size": 8, "threads": 1, "evaluate_every": 3, "dtype": "float64"},
}
"""An experiment without a target: AUROC for the worst mixture of two sites, each with few or no rows of some class."""
