"""Options of all averaging methods: a server's optimiser, and updates that count by their mean step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from problems import played, random_game

import fedmm
from fedmm import (
    ALGORITHMS,
    FedAvgGDA,
    FedmmError,
    FedProxGDA,
    ScaffoldGDA,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerYogi,
    Terms,
)
from fedmm.algorithms.averaging import Averaging
from fedmm.config.dataclass_io import as_table, choose
from fedmm.engines.in_process import InProcess

AVERAGING = {name: kind for name, kind in ALGORITHMS.items() if issubclass(kind, Averaging)}
each_method = pytest.mark.parametrize("kind", AVERAGING.values(), ids=AVERAGING)


def test_the_averaging_methods_are_these() -> None:
    assert set(AVERAGING) == {
        "fedavg_gda", "fedprox_gda", "scaffold_gda", "extragradient", "proximal_point", "sgda_plus", "momentum_gda",
        "fess_gda", "coda_plus", "codasca", "afl",
    }  # fmt: skip


# Server optimisers ----------------------------------------------------------------------------------------------------


def by_hand(optimizer: ServerOptimizer, rounds: int, eta_g: float) -> torch.Tensor:
    """Reddi et al.'s boxes, with D of one local step for the clients' mean update."""
    game, eta = random_game(1), 0.05
    z = torch.cat(game.start)
    m = torch.zeros_like(z)
    v = torch.full_like(z, getattr(optimizer, "epsilon", 0.0) ** 2)
    for _ in range(rounds):
        D = -eta * torch.stack([client.field(z) for client in game.clients]).mean(0)
        if isinstance(optimizer, ServerMomentum):
            m = optimizer.momentum * m + D
            z = z + eta_g * m
            continue
        assert isinstance(optimizer, ServerAdam)
        m = optimizer.momentum * m + (1 - optimizer.momentum) * D
        b = optimizer.second_momentum
        if isinstance(optimizer, ServerYogi):
            v = v - (1 - b) * D**2 * torch.sign(v - D**2)
        else:
            v = b * v + (1 - b) * D**2
        z = z + eta_g * m / (v.sqrt() + optimizer.epsilon)
    return z


@pytest.mark.parametrize("optimizer", [ServerMomentum(0.7), ServerAdam(0.8, 0.9, 0.01), ServerYogi(0.8, 0.9, 0.01)])
def test_an_optimiser_is_its_papers_box_worked_out_by_hand(optimizer: ServerOptimizer) -> None:
    state = random_game(1).play(FedAvgGDA(0.05, 0.05, 1, server_lr=0.1, server_optimizer=optimizer), 7)
    torch.testing.assert_close(state.z, by_hand(optimizer, 7, 0.1), rtol=1e-11, atol=1e-12)


@each_method
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "yogi"])
def test_every_averaging_method_takes_every_optimiser_and_sends_nothing_more(
    kind: type[Averaging], optimizer: str
) -> None:
    game = random_game(2)
    options: dict[str, Any] = {"local_steps": 2, "server_lr": 0.05}
    plain, optimised = kind(0.02, 0.02, **options), kind(0.02, 0.02, server_optimizer=optimizer, **options)
    (first, record), (other, expected) = (
        list(played(InProcess(game.problem(), each, 6), 6))[-1] for each in (optimised, plain)
    )
    assert record.bytes_up == expected.bytes_up
    assert record.bytes_down == expected.bytes_down
    assert not torch.equal(first.z, other.z)
    kept = {"moment"} if optimizer == "momentum" else {"moment", "second_moment"}
    assert first.server.keys() == other.server.keys() | kept


@each_method
def test_without_an_optimiser_nothing_more_is_kept(kind: type[Averaging]) -> None:
    assert not set(ServerOptimizer.KEPT) & kind().init_server(torch.zeros(2)).keys()


def test_momentum_and_adam_reach_the_saddle_of_a_convex_concave_game() -> None:
    game = random_game(3)
    momentum = ScaffoldGDA(0.05, 0.05, 5, server_optimizer=ServerMomentum(0.5))
    assert game.error(game.play(momentum, 400)) < 1e-8
    adam = ScaffoldGDA(0.02, 0.02, 5, server_lr=0.02, server_optimizer=ServerAdam(epsilon=0.1))
    assert game.error(game.play(adam, 3000)) < 1e-6


def test_an_optimiser_is_given_by_name_or_as_a_table() -> None:
    given = {"name": "fedavg_gda", "server_optimizer": {"name": "yogi", "epsilon": 0.5}}
    algorithm = choose(ALGORITHMS, given, "algorithm")
    assert algorithm == FedAvgGDA(server_optimizer=ServerYogi(epsilon=0.5))
    assert choose(ALGORITHMS, as_table(algorithm), "algorithm") == algorithm
    assert FedProxGDA(server_optimizer="adam") == FedProxGDA(server_optimizer=ServerAdam())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("adma", "adam"),
        (ServerAdam, "server_optimizer must be an instance such as"),
        (3, "server_optimizer must be an instance such as"),
    ],
)
def test_an_unknown_optimiser_is_refused(given: Any, said: str) -> None:
    with pytest.raises(FedmmError, match=said):
        FedAvgGDA(server_optimizer=given)


@pytest.mark.parametrize("options", [{"momentum": 1.0}, {"second_momentum": -0.1}, {"epsilon": 0.0}])
def test_bad_options_of_an_optimiser_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(FedmmError, match=next(iter(options))):
        ServerAdam(**options)


# Updates that count by their mean step --------------------------------------------------------------------------------

UNEQUAL = {"client-0": 1, "client-1": 2, "client-2": 9}


def test_normalised_updates_are_fed_norm_worked_out_by_hand() -> None:
    game, eta, rounds = random_game(1), 0.02, 5
    state = game.play(FedAvgGDA(eta, eta, UNEQUAL, normalize_steps=True), rounds)
    z, mean = torch.cat(game.start), 4.0
    for _ in range(rounds):
        moved = []
        for client, steps in zip(game.clients, UNEQUAL.values(), strict=True):
            own = z
            for _ in range(steps):
                own = own - eta * client.field(own)
            moved.append((own - z) / steps)
        z = z + mean * torch.stack(moved).mean(0)
    torch.testing.assert_close(state.z, z, rtol=1e-11, atol=1e-12)


def test_they_end_near_the_saddle_where_plain_means_end_near_the_busiest_clients() -> None:
    game = random_game(2)
    errors = [
        game.error(game.play(FedAvgGDA(0.002, 0.002, UNEQUAL, normalize_steps=normalize), 3000))
        for normalize in (True, False)
    ]
    assert errors[0] < 0.1 * errors[1]


def test_with_equal_steps_they_change_no_bit() -> None:
    game = random_game(2)
    one, other = (game.play(FedAvgGDA(0.05, 0.05, 4, normalize_steps=each), 10).z for each in (True, False))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "terms",
    [
        Terms(secure_sum=True),
        Terms(transmission=fedmm.GaussianUpdate(trust="server")),
    ],
    ids=["secure sum", "shared noise"],
)
def test_they_are_refused_where_updates_must_count_alike(terms: Terms) -> None:
    problem = random_game(2).problem()
    with pytest.raises(FedmmError, match="normalize_steps"):
        InProcess(problem, FedAvgGDA(local_steps=UNEQUAL, normalize_steps=True), 1, terms)
    InProcess(problem, FedAvgGDA(local_steps=3, normalize_steps=True), 1, terms)


def test_half_of_the_clients_weigh_as_they_do_among_all() -> None:
    game = random_game(4, clients=4)
    problem = replace(game.problem(), seed=3)
    algorithm = FedAvgGDA(0.02, 0.02, [1, 2, 3, 10], normalize_steps=True)
    engine = InProcess(problem, algorithm, 1, Terms(participation=0.5))
    state, _ = engine.run_round(engine.start())
    z = torch.cat(game.start)
    moved = []
    for name, steps, client in zip(engine.server.names, (1, 2, 3, 10), game.clients, strict=True):
        if name in state.counted:
            own = z
            for _ in range(steps):
                own = own - 0.02 * client.field(own)
            moved.append(4.0 * (own - z) / steps)
    assert len(moved) == 2
    torch.testing.assert_close(state.z, z + torch.stack(moved).mean(0), rtol=1e-11, atol=1e-12)
