"""Very different runs that may share a stack, and the comparison of a stack with the reference engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
from problems import (
    CLASSES,
    FLOAT64,
    WIDTH,
    generator,
    labels,
    network,
    played,
    takes_noise,
    train_options,
    with_options,
)
from torch import Tensor, nn

import fedmm
from fedmm import (
    ALGORITHMS,
    AUC,
    CDAN,
    DANN,
    MDD,
    OBJECTIVES,
    ClippedUpdate,
    CoordinateMedian,
    FedAvgGDA,
    FedMM,
    FedProxGDA,
    FedSGDA,
    GeometricMedian,
    ScaffoldGDA,
    SourceOnly,
    Terms,
    TrimmedMean,
)
from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.compression import algorithms_part
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.mechanisms import GaussianUpdate
from fedmm.core.objective import Objective
from fedmm.core.problem import FederatedProblem
from fedmm.core.projections import ConvexSet
from fedmm.core.schedules import CosineDecay, DannDecay, DannWarmup, InverseDecay
from fedmm.data import Dirichlet, DisjointClasses, DomainPair, Labelled, Partition, PSplit, Share, SourceTarget
from fedmm.data.rows import TensorRows
from fedmm.engines.batched import METRICS, Batched, Replica
from fedmm.models import Network, SmallCNN
from fedmm.models.devices import precision
from fedmm.models.stacked.network import StackedNetwork
from fedmm.training.adaptation import Adaptation

PLANNED = 12
"""The number of rounds for which schedules are made, unless a run sets another."""

ROUNDS = 4
"""The number of rounds over which stacks are compared."""

Round = tuple[FederatedState, RoundRecord]
"""State and record after a round."""

BATCH = 8
PICTURE = (1, 6, 6)
CROP = fedmm.CropAndFlip(5)


# Data -----------------------------------------------------------------------------------------------------------------


@cache
def vectors(source: int = 40, target: int = 30, shape: tuple[int, ...] = (WIDTH,)) -> DomainPair:
    """Return two clouds of points, the target shifted and stretched, with random labels."""

    def domain(seed: int, count: int) -> Labelled:
        return Labelled(torch.randn(count, *shape, generator=generator(seed), dtype=FLOAT64), labels(seed, count))

    there = domain(12, target)
    return DomainPair(
        domain(11, source), Labelled(1.5 * there.x + 0.5, there.y), domain(13, 4), domain(14, 4), ["a", "b", "c"]
    )


@cache
def pictures() -> DomainPair:
    return vectors(shape=PICTURE)


@cache
def byte_pictures() -> DomainPair:
    """Return the same pictures as integers from 0 to 255."""
    pair = pictures()

    def as_bytes(domain: Labelled) -> Labelled:
        return Labelled((domain.x * 50 + 128).clamp(0, 255).to(torch.uint8), domain.y)

    tests = (pair.source_test, pair.target_test)
    return DomainPair(*(as_bytes(each) for each in (pair.source, pair.target, *tests)), class_names=pair.class_names)


@cache
def cropped(pair: Callable[[], DomainPair]) -> DomainPair:
    """Return pictures that are cropped and flipped in training."""
    return replace(pair(), view=CROP)


# Networks, as functions of a seed -------------------------------------------------------------------------------------


def seeded(seed: int, *layers: Callable[[], nn.Module], **options: Any) -> Network:
    """Return a network of these layers, with weights from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network(*(layer() for layer in layers), **options)


def small(seed: int, **options: Any) -> Network:
    return seeded(seed, lambda: nn.Linear(WIDTH, 6), nn.Tanh, lambda: nn.Linear(6, 5), nn.ReLU, **options)


def dropping(seed: int) -> Network:
    dropout = lambda: nn.Dropout(0.3)  # noqa: E731 - a layer like its neighbours
    hidden = {"task_hidden": (5,), "adversary_hidden": (5,), "head_dropout": 0.4}
    return seeded(seed, dropout, lambda: nn.Linear(WIDTH, 6), nn.ReLU, dropout, **hidden)


def convolving(seed: int) -> Network:
    return SmallCNN(channels=(3, 4), task_hidden=(5,), adversary_hidden=(5,)).build(PICTURE, CLASSES, seed)


def convolving_crops(seed: int) -> Network:
    return SmallCNN(channels=(4, 6), task_hidden=(5,), adversary_hidden=(6,)).build(CROP.shape(PICTURE), CLASSES, seed)


def normalising(policy: str) -> Callable[[int], Network]:
    """Return a builder of networks with both kinds of batch normalisation, pooling and dropout."""

    def build(seed: int) -> Network:
        return seeded(
            seed,
            lambda: nn.Conv2d(1, 3, 3, padding=1),
            lambda: nn.BatchNorm2d(3),
            nn.ReLU,
            lambda: nn.MaxPool2d(2),
            lambda: nn.Dropout(0.2),
            nn.Flatten,
            lambda: nn.Linear(27, 5),
            lambda: nn.BatchNorm1d(5, momentum=0.3),
            nn.Tanh,
            batch_norm=policy,
        )

    return build


# Runs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Run:
    """Everything that determines a run; building it again gives the same run."""

    algorithm: Algorithm
    objective: Objective = field(default_factory=lambda: DANN(nu=0.4))
    seed: int = 0
    partition: Partition = field(default=SourceTarget(2, 2))
    pair: DomainPair = field(default_factory=vectors)
    network: Callable[[int], Network] = small
    rounds: int = PLANNED
    weights: Mapping[str, float] = field(default_factory=dict)
    terms: Terms = field(default=Terms())
    constraints: Mapping[str, ConvexSet] = field(default_factory=dict)

    def problem(self, adaptation: Adaptation) -> FederatedProblem:
        """Return the adaptation's problem with the run's constraints, if it has any."""
        return replace(adaptation.problem, constraints=self.constraints or adaptation.problem.constraints)

    def adaptation(self, device: str = "cpu", dtype: torch.dtype = FLOAT64) -> Adaptation:
        pair, network = self.pair, self.network(self.seed)
        if classes := self.objective.class_count:
            source = Labelled(pair.source.x, pair.source.y % classes)
            pair = replace(pair, source=source, class_names=pair.class_names[:classes])
            network = replace(network, classes=classes)
        shares = self.partition.split(pair, self.seed)
        return Adaptation(
            [self._client(share, pair) for share in shares],
            network,
            self.objective,
            self.algorithm,
            train_options(
                dtype, rounds=self.rounds, batch_size=BATCH, seed=self.seed, device=device, probe_rows=0, best_by=""
            ),
            view=self.pair.view,
            terms=self.terms,
        )

    def _client(self, share: Share, pair: DomainPair) -> fedmm.Client:
        source, target = pair.source, pair.target
        return fedmm.Client(
            source=TensorRows(source.x, source.y, index=share.source) if len(share.source) else None,
            target=TensorRows(target.x, index=share.target) if len(share.target) else None,
            name=share.name,
            weight=self.weights.get(share.name, 1.0),
        )


def stacked(
    runs: Sequence[Run],
    *,
    looped: bool = False,
    chosen: str = "fp32",
    device: str = "cpu",
    dtype: torch.dtype = FLOAT64,
    **options: Any,
) -> Batched:
    """Return the runs as one stack. chosen: the precision. options: those of ``Batched``."""
    built = [run.adaptation(device, dtype) for run in runs]
    first = built[0].function
    together = StackedNetwork(
        [each.function.module for each in built],
        first.layout,
        precision=chosen,
        frozen_statistics=first.policy == "frozen",
        looped=looped,
    )
    replicas = [
        Replica(run.problem(each), run.algorithm, run.rounds, run.terms) for each, run in zip(built, runs, strict=True)
    ]
    return Batched(replicas, together, around=lambda: precision(chosen, torch.device(device)), **options)


def advanced(stack: Batched, rounds: int) -> Tensor:
    """Advance the stack by ``rounds`` rounds; return the metrics of the last."""
    for _ in range(rounds):
        measures = stack.advance()
    return measures


def referred(run: Run, rounds: int) -> Round:
    """Return the run's last round in the reference engine."""
    *_, last = played(run.adaptation().engine, rounds)
    return last


# Comparison -----------------------------------------------------------------------------------------------------------


def tensors(state: FederatedState) -> dict[str, Tensor]:
    """Return every tensor of a state, on the CPU, by a name that says where it belongs."""
    groups = {"server": state.server, "statistics": state.statistics}
    groups |= {f"client {name}": own for name, own in state.clients.items()}
    groups |= {f"statistics of {name}": own for name, own in state.client_statistics.items()}
    groups |= {f"totals of {name}": own for name, own in state.totals.items()}
    return {f"{group}: {name}": tensor.cpu() for group, named in groups.items() for name, tensor in named.items()}


def assert_same_state(one: FederatedState, other: FederatedState, tolerance: float) -> None:
    assert one.round == other.round
    torch.testing.assert_close(tensors(one), tensors(other), rtol=tolerance, atol=tolerance)


def assert_agrees(stack: Batched, replica: int, measures: Tensor, reference: Round, tolerance: float) -> None:
    """Assert that a replica's state, and its last round's metrics and traffic, are those of the reference."""
    state, record = reference
    assert_same_state(stack.state(replica), state, tolerance)
    distances = {name: getattr(record, name) for name in ("drift", "consensus_gap", "dual_norm")}
    measured = dict(zip(METRICS, measures[replica].tolist(), strict=True))
    if stack.terms.transmission.private:
        assert not record.metrics
        assert not any(measured.pop(name) > 0 for name in ("loss", "domain_loss", "task_loss"))
    elif "task_loss" not in record.metrics:  # a round without clients that hold the source
        assert math.isnan(measured.pop("task_loss"))
        if not record.clients:
            assert not record.metrics
            assert (measured.pop("loss"), measured.pop("domain_loss")) == (0.0, 0.0)
    traffic = stack.traffic(replica, record.round - 1, int(measured.pop("in_step")))
    expected = distances | record.metrics | {"clients": record.clients}
    assert measured == pytest.approx(expected, rel=tolerance, abs=tolerance)
    assert traffic == (record.bytes_up, record.bytes_down)


def assert_moved(before: FederatedState, after: FederatedState, omega: int, *, all_counted: bool = True) -> None:
    """Assert that both sides of the point and every client's vectors moved, since agreement means little otherwise.

    They must move by 1e-3, a million times the tolerance 1e-9 of comparisons. omega: how many coordinates of the point
    belong to omega. all_counted: False if clients may be away or refused.
    """
    for side in (slice(omega), slice(omega, None)):
        if before.z[side].numel():
            assert float((after.z - before.z)[side].norm()) > 1e-3
    for client, own in after.clients.items() if all_counted else ():
        for name, vector in algorithms_part(own).items():
            assert float((vector - before.clients[client][name]).norm()) > 1e-3, (client, name)


# Stacks ---------------------------------------------------------------------------------------------------------------

RATES = {"lr_min": 0.2, "lr_max": 0.3, "local_steps": 2}


def every_algorithm() -> list[Run]:
    """Return a run of each algorithm on the plain field, with equal local steps but different seeds and trade-offs."""
    return [
        Run(with_options(kind, **RATES), DANN(nu=0.2 + 0.1 * (seed % 7)), seed)
        for seed, kind in enumerate(kind for kind in ALGORITHMS.values() if not kind.restrains)
    ]


def hidden(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose updates may carry noise."""
    return [run for run in runs if takes_noise(type(run.algorithm))]


@dataclass(frozen=True)
class LocalAdam(FedAvgGDA):
    """FedAvgGDA whose clients take Adam steps, with moments reset in every round."""

    name: ClassVar[str] = "local_adam"

    def begin(self, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        return {"m": torch.zeros_like(z), "v": torch.zeros_like(z), "taken": torch.zeros_like(z[..., :1])}

    def step(
        self, z: Tensor, sent: State, client: State, F: Tensor, G: Tensor, c: Coefficients
    ) -> tuple[Tensor, State]:
        m, v, taken = 0.9 * client["m"] + 0.1 * F, 0.99 * client["v"] + 0.01 * F * F, client["taken"] + 1
        along = m / (1 - 0.9**taken) / ((v / (1 - 0.99**taken)).sqrt() + 1e-2)
        return z - c.lr * along, {"m": m, "v": v, "taken": taken}


def beyond_local_steps(**options: Any) -> list[Run]:
    """Return methods that look ahead, or whose state changes in every step, and one that does neither; steps differ."""
    algorithms: list[Algorithm] = [
        fedmm.Extragradient(0.1, 0.3, 3),
        FedMM(0.1, 0.3, local_steps=2),
        fedmm.MomentumGDA(0.1, 0.3, 4, momentum=0.5),
        fedmm.FedSGDAM(0.1, 0.3, 2, momentum=0.5, lr_schedule=DannDecay()),
        fedmm.SGDAPlus(0.1, 0.3, 3, snapshot_every=2),
        fedmm.ProximalPoint(0.1, 0.3, 5, inner_steps=2),
        fedmm.ProximalPoint(0.1, 0.3, [1, 3, 4, 7], inner_steps=3),
        LocalAdam(0.05, 0.02, 3),
    ]
    return [Run(each, DANN(nu=0.2 + 0.1 * seed), seed, **options) for seed, each in enumerate(algorithms)]


def in_pairs(**options: Any) -> list[Run]:
    """Return a method whose rounds come in pairs, and others; their numbers of local steps differ."""
    algorithms: list[Algorithm] = [
        fedmm.FedGDAGT(0.1, 0.3, 4),
        fedmm.FedGDAGT(0.1, 0.3, 2, server_lr=0.7, lr_schedule=DannDecay()),
        FedMM(0.1, 0.3, local_steps=3),
        fedmm.Extragradient(0.1, 0.3, 2),
    ]
    return [Run(each, DANN(nu=0.2 + 0.1 * seed), seed, **options) for seed, each in enumerate(algorithms)]


def server_optimizers(**options: Any) -> list[Run]:
    """Return averaging methods with different server optimisers, some with unequal local steps that are normalised."""
    unequal = {"source-1": 1, "source-2": 3, "source-3": 2, "target-1": 2, "target-2": 4, "target-3": 1}
    adaptation = Run(FedAvgGDA(), **options).adaptation()
    steps = {name: unequal[name] for name in adaptation.engine.server.names}
    algorithms: list[Algorithm] = [
        FedAvgGDA(0.1, 0.3, 2, server_lr=0.05, server_optimizer="adam"),
        FedAvgGDA(0.1, 0.2, 3, server_lr=0.03, server_optimizer="adam"),
        FedAvgGDA(0.1, 0.3, 2, server_lr=0.05, server_optimizer=fedmm.ServerYogi(epsilon=0.01)),
        ScaffoldGDA(0.1, 0.3, 2, 0.5, server_optimizer="momentum"),
        FedAvgGDA(0.1, 0.3, steps, normalize_steps=True),
        FedAvgGDA(0.1, 0.3, steps),
        FedProxGDA(0.1, 0.3, local_steps=steps, normalize_steps=True, server_lr=0.8),
    ]
    return [Run(each, DANN(nu=0.2 + 0.1 * seed), seed, **options) for seed, each in enumerate(algorithms)]


def two_methods(objective: Objective, **options: Any) -> list[Run]:
    """Return two methods whose clients keep states; seed, trade-off and the weight of a target loss differ."""
    changed = replace(objective, nu=0.7, nu_schedule=DannWarmup(), target_weight=2.0)
    return [
        Run(with_options(kind, **RATES), each, seed, **options)
        for seed, (kind, each) in enumerate(((FedMM, objective), (ScaffoldGDA, changed)))
    ]


def normalised(policy: str, **changes: Any) -> list[Run]:
    """Return runs of a network with batch normalisation. changes: to their algorithms' options."""
    return [
        replace(run, algorithm=with_options(type(run.algorithm), **RATES | {"lr_min": 0.1} | changes))
        for run in two_methods(DANN(nu=0.3), pair=pictures(), network=normalising(policy))
    ]


MIXED = [
    Run(FedSGDA(0.3, 0.5), DANN(nu=0.1)),
    Run(FedAvgGDA(0.2, 0.2, 2), DANN(nu=0.5), seed=1, partition=Dirichlet(0.4, 2, 2)),
    Run(
        FedAvgGDA({"features": 0.1, "features.2": 0.3, "*": 0.2}, 0.4, 3, server_lr=0.7, lr_schedule=InverseDecay(0.1)),
        DANN(nu=0.8, nu_schedule=DannWarmup()),
        seed=2,
        partition=DisjointClasses(3, 1),
        rounds=20,
    ),
    Run(FedProxGDA(0.2, 0.3, 0.5, 1.0, 2), seed=1, partition=SourceTarget(1, 3)),
    Run(FedProxGDA(0.1, 0.2, {"task_head": 2.0, "*": 0.0}, 0.3, 3), seed=7, weights={"source-1": 3.0, "target-2": 0.5}),
    Run(FedMM(0.2, 0.3, 1.0, 2.0, 0.9, 3), seed=3, partition=Dirichlet(0.5, 3, 1)),
    Run(
        FedMM(0.1, {"adversary": 0.2}, {"features": 0.5, "*": 1.5}, 0.5, 1.0, 2, lr_schedule=DannDecay()),
        DANN(nu=0.6, gradient_scale={"features": 0.5, "adversary": 2.0, "*": 1.0}),
        seed=4,
        rounds=11,
    ),
    Run(FedMM(0.1, 0.1, 1.0, 1.0, 0.5, [1, 3, 2, 2]), seed=5),
    Run(ScaffoldGDA(0.2, 0.2, 3, 0.8), seed=6, partition=Dirichlet(0.5, 1, 3)),
    Run(
        ScaffoldGDA(
            0.1, 0.2, {"source-1": 2, "source-2": 3, "target-1": 1, "target-2": 2}, lr_schedule=CosineDecay(0.1)
        ),
        seed=0,
    ),
]
"""Runs that differ in algorithm, hyperparameters, group rates, schedule, trade-off, seed, partition and local steps."""

BOTH_DOMAINS = [
    Run(with_options(kind, **RATES), seed=seed, partition=partition)
    for seed, (kind, partition) in enumerate(
        [
            (FedAvgGDA, PSplit(0.7)),
            (FedAvgGDA, PSplit(0.15)),
            (FedMM, PSplit(0.5)),
            (FedMM, SourceTarget(1, 1)),
            (ScaffoldGDA, PSplit(1.0)),
            (ScaffoldGDA, PSplit(0.9)),
        ]
    )
]
"""Clients that hold both domains in different proportions, and clients that hold one."""

OBJECTIVE_OPTIONS = {name: kind(nu=0.3) for name, kind in OBJECTIVES.items()} | {
    "auc, square": AUC(form="square"),
    "auc, given": AUC(margin=0.5, positive_share=0.4),
    "auc, partial": AUC(max_fpr=0.3),
    "auc, scaled": AUC(margin=0.5, scaled=True),
    "source_only, balanced": SourceOnly(class_weights="balanced"),
    "cdan, detached": CDAN(nu=0.3, detach_softmax=True),
    "cdan, by entropy": CDAN(nu=0.3, entropy_weighting=True),
    "cdan, random map": CDAN(nu=0.3, random_dim=5),
    "cdan, all options": CDAN(nu=0.3, detach_softmax=True, entropy_weighting=True, random_dim=7),
    "mdd, margin": MDD(nu=0.3, gamma=3.0, epsilon=1e-3),
    "dann, smoothed": DANN(nu=0.3, domain_smoothing=0.1),
    "dann, restrained": DANN(nu=0.3, restrained=True),
    "cdan, restrained": CDAN(nu=0.3, restrained=True, source_share=0.4, domain_smoothing=0.1),
    "dann, mcc": DANN(nu=0.3, target_loss="mcc", target_weight=0.5),
    "cdan, im": CDAN(nu=0.3, target_loss="im", target_weight=0.5),
    "mdd, bnm": MDD(nu=0.3, target_loss="bnm", target_weight=0.5),
    "cdan, sam": CDAN(nu=0.3, sam_radius=0.1, target_loss="im", target_weight=0.5),
}

POLICIES = ("averaged", "frozen", "local")


def on_terms(runs: Sequence[Run], *shares: float, **terms: Any) -> list[Run]:
    """Return the runs with other terms. shares: participation rates, used in rotation."""
    return [
        replace(run, terms=Terms(shares[place % len(shares)] if shares else 1.0, **terms))
        for place, run in enumerate(runs)
    ]


def many_clients(**options: Any) -> list[Run]:
    """Return :func:`every_algorithm` with three clients of each domain, so that medians differ from means."""
    return [replace(run, partition=SourceTarget(3, 3), **options) for run in every_algorithm()]


def seatable(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose rounds need nothing from absent clients, so that these are not computed."""
    return [run for run in runs if not run.algorithm.reports]


def weighed_targets() -> list[Run]:
    """Return runs that weight only target clients, in different numbers, and one that weights all clients."""
    kinds = [fedmm.AFL, fedmm.AFL, fedmm.AgnosticFedMM, fedmm.DRFA]
    others = [("none", 0.0), ("kl", 0.3), ("chi_square", 0.3), ("none", 0.0)]
    return [
        Run(
            with_options(kind, **RATES, weighs="target", lr_weights=0.3, regulariser=name, regulariser_weight=strength),
            DANN(nu=0.3),
            seed=seed,
            partition=SourceTarget(2, 2) if seed % 2 else SourceTarget(1, 3),
        )
        for seed, (kind, (name, strength)) in enumerate(zip(kinds, others, strict=True))
    ] + [Run(with_options(fedmm.DRFA, **RATES), seed=5)]


ROBUST = (CoordinateMedian(), TrimmedMean(0.3), GeometricMedian(8))

TERMS: dict[str, list[Run]] = (
    {
        "half of the clients": on_terms(many_clients(), 0.5, 0.17, 0.67, 1.0),
        "half of the clients, mixed": on_terms(MIXED, 0.5, 0.75),
        "clipped": on_terms(every_algorithm(), transmission=ClippedUpdate(0.3)),
        "half, clipped": on_terms(many_clients(), 0.5, transmission=ClippedUpdate(0.3)),
        "bounded": on_terms(many_clients(), 1.0, 0.67, max_update_norm=0.2, on_bad_update="skip"),
        "unusual": on_terms(many_clients(), 1.0, 0.84, max_update_ratio=1.1),
        "noisy": on_terms(hidden(every_algorithm()), transmission=GaussianUpdate(0.3, 0.2, 0.1, 0.2)),
        "half, noisy": on_terms(hidden(many_clients()), 0.5, 0.67, transmission=GaussianUpdate(0.3, 0.2, 0.1, 0.2)),
        "noise shared": on_terms(many_clients()[:3], 1.0, 0.5, transmission=GaussianUpdate(0.3, 0.2, trust="server")),
        "uploads in int8": on_terms(every_algorithm(), uploads="int8"),
        "half, all in int8": on_terms(many_clients(), 0.5, 0.67, 1.0, uploads="int8", broadcasts="int8"),
        "half, all in fp16": on_terms(MIXED, 0.5, 0.75, 1.0, uploads="fp16", broadcasts="fp16"),
        "broadcasts in int8, bounded": on_terms(
            many_clients(), 1.0, 0.67, broadcasts="int8", max_update_norm=0.2, on_bad_update="skip"
        ),
        "noisy, in int8": on_terms(
            hidden(many_clients()),
            0.67,
            transmission=GaussianUpdate(0.3, 0.2, 0.1, 0.2),
            uploads="int8",
            broadcasts="fp16",
        ),
        "median, in int8": on_terms(
            many_clients(), 0.67, aggregation=CoordinateMedian(), uploads="int8", broadcasts="int8"
        ),
        "restorable": on_terms(every_algorithm(), 0.5, restore=True),
        "few": on_terms(seatable(many_clients()), 0.5, 0.17, 0.34),
        "few, mixed": on_terms(MIXED, 0.5, 0.25),
        "few, bounded": on_terms(seatable(many_clients()), 0.5, 0.34, max_update_norm=0.2, on_bad_update="skip"),
        "few, noisy": on_terms(
            hidden(seatable(many_clients())), 0.5, 0.34, transmission=GaussianUpdate(0.3, 0.2, 0.1, 0.2)
        ),
        "few, all in int8": on_terms(seatable(many_clients()), 0.5, 0.34, uploads="int8", broadcasts="int8"),
        "few, median": on_terms(
            [run for run in seatable(many_clients()) if not run.algorithm.accumulates],
            0.5,
            aggregation=CoordinateMedian(),
        ),
        "few, dropout": on_terms(two_methods(DANN(nu=0.3), network=dropping), 0.5, 0.25),
        "few, cropped": on_terms(two_methods(DANN(nu=0.3), pair=cropped(pictures), network=convolving_crops), 0.5),
        "few, pairs of rounds": on_terms(in_pairs(partition=SourceTarget(3, 3)), 0.5, max_update_ratio=1.05),
        "few, server optimisers": on_terms(server_optimizers(partition=SourceTarget(3, 3)), 0.5, 0.34),
        "pairs of rounds, unusual": on_terms(in_pairs(partition=SourceTarget(3, 3)), 1.0, 0.84, max_update_ratio=1.05),
    }
    | {each.name: on_terms(many_clients(), aggregation=each) for each in ROBUST}
    | {f"half, {each.name}": on_terms(many_clients(), 0.5, 0.67, aggregation=each) for each in ROBUST}
    | {f"half, batch norm {policy}": on_terms(normalised(policy), 0.5) for policy in POLICIES}
    | {
        f"median, batch norm {policy}": on_terms(normalised(policy), 0.75, aggregation=CoordinateMedian())
        for policy in POLICIES
    }
)
"""Stacks whose clients are away, or whose updates are refused, clipped, noised, compressed or outlying."""

STACKS: dict[str, list[Run]] = (
    {f"{name} alone": [Run(with_options(kind, **RATES), seed=3)] for name, kind in ALGORITHMS.items()}
    | {"every algorithm": every_algorithm(), "mixed": MIXED, "both domains": BOTH_DOMAINS}
    | TERMS
    | {
        f"objective {name}": two_methods(each, partition=SourceTarget(1, 1)) for name, each in OBJECTIVE_OPTIONS.items()
    }
    | {
        f"both domains, {name}": two_methods(OBJECTIVE_OPTIONS[name], partition=PSplit(0.7))
        for name in ("cdan, all options", "mdd", "source_only", "dann, mcc", "mdd, bnm")
    }
    | {
        f"{name}, {partition.name}": two_methods(OBJECTIVE_OPTIONS[name], partition=partition)
        for name in ("auc", "auc, square", "auc, partial", "auc, scaled", "source_only, balanced")
        for partition in (DisjointClasses(2, 1), Dirichlet(0.5, 3, 1))
    }
    | {f"batch norm {policy}": normalised(policy) for policy in POLICIES}
    | {
        f"beyond local steps, batch norm {policy}": beyond_local_steps(pair=pictures(), network=normalising(policy))
        for policy in POLICIES
    }
    | {
        "beyond local steps": beyond_local_steps(),
        "beyond local steps, dropout": beyond_local_steps(network=dropping),
        "beyond local steps, half, clipped": on_terms(
            beyond_local_steps(partition=SourceTarget(2, 2)), 0.5, transmission=ClippedUpdate(0.3)
        ),
        "drawn steps alone": [Run(fedmm.ProxSkipSGDA(0.1, 0.3, 3), seed=1, network=dropping)],
        "drawn steps": [
            Run(fedmm.ProxSkipSGDA(0.1, 0.3, 3), seed=1),
            Run(fedmm.ProxSkipSGDA(0.1, 0.3, 2), seed=2),
            Run(fedmm.Extragradient(0.1, 0.3, 2), seed=3),
        ],
        "pairs of rounds": in_pairs(),
        "pairs of rounds alone": in_pairs()[:1],
        "server optimisers": server_optimizers(),
        "server optimisers, half, median": on_terms(
            server_optimizers(partition=SourceTarget(3, 3)), 0.67, aggregation=CoordinateMedian()
        ),
        "weighed targets": weighed_targets(),
        "weighed targets, mostly there": on_terms(weighed_targets(), 0.75),
        "dropout": two_methods(DANN(nu=0.3), network=dropping),
        "pictures": two_methods(DANN(nu=0.3), network=convolving, pair=pictures()),
        "bytes": two_methods(DANN(nu=0.3), network=convolving, pair=byte_pictures(), partition=PSplit(0.4)),
        "cropped": two_methods(DANN(nu=0.3), network=convolving_crops, pair=cropped(pictures)),
        "cropped bytes": two_methods(
            DANN(nu=0.3), network=convolving_crops, pair=cropped(byte_pictures), partition=PSplit(0.4)
        ),
        "centred by row": two_methods(DANN(nu=0.3), network=lambda seed: small(seed, centre="image_mean")),
        "pictures centred by row": two_methods(
            DANN(nu=0.3), network=lambda seed: replace(convolving(seed), centre="image_mean"), pair=byte_pictures()
        ),
        "centred by batch": two_methods(DANN(nu=0.3), network=lambda seed: small(seed, centre="batch_mean")),
        "centred by training data": [
            replace(run, partition=Dirichlet(0.4, run.seed + 1, 2 - run.seed))
            for run in two_methods(DANN(nu=0.3), network=lambda seed: small(seed, centre="train_mean"))
        ],
        "source only, listed steps": [
            Run(FedAvgGDA(0.2, 0.2, [2, 4, 3, 1]), fedmm.SourceOnly()),
            Run(FedMM(0.2, 0.2, local_steps={"source-1": 1, "source-2": 3, "target-1": 9, "target-2": 9}),
                fedmm.SourceOnly(), seed=1),
        ],
    }
)  # fmt: skip


@cache
def reference(name: str) -> list[list[Round]]:
    """Return each run of a stack in the reference engine, round by round."""
    return [list(played(run.adaptation().engine, ROUNDS)) for run in STACKS[name]]
