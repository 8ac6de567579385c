"""Flower's records and messages in one process: what is computed is what the reference computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from faults.exchanges import Unreliable, survived
from faults.test_messaging import TERMS, assert_equal_states
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping
from problems import mixed_client, network, played, random_game, source_client, takes_noise, target_client, with_options
from remote.flower.loopback import LoopbackGrid, bare, flower_engine
from torch import nn

import fedmm
from fedmm import ALGORITHMS, FedAvgGDA, FedGDAGT, FedMM, Terms
from fedmm.core.algorithm import Algorithm
from fedmm.engines.in_process import InProcess
from fedmm.remote.messaging import Messaging
from fedmm.training.clients import take_stock
from fedmm.training.problem import adaptation_problem

each_algorithm = pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=ALGORITHMS)


@each_algorithm
@pytest.mark.parametrize("terms", TERMS, ids=range(len(TERMS)))
def test_every_algorithm_computes_the_same_bits_through_flower(kind: type[Algorithm], terms: Terms) -> None:
    problem = random_game(1, clients=4).problem()
    if terms.transmission.private and not takes_noise(kind):
        pytest.skip("refused: tests/training/test_privacy_attack.py")
    flower, reference = (each(problem, with_options(kind), 6, terms) for each in (flower_engine, InProcess))
    for (one, record), (other, expected) in zip(played(flower, 6), played(reference, 6), strict=True):
        assert_equal_states(bare(one), bare(other))
        told = 0.0 if terms.transmission.private else expected.dual_norm  # with noise, sites tell nothing else
        assert record.dual_norm == pytest.approx(told, rel=1e-12)
        assert replace(record, seconds=0.0, dual_norm=0.0) == replace(expected, seconds=0.0, dual_norm=0.0)
        for name, site in flower.grid.sites.items():
            held = site.memory.held
            counted = other.counted.get(name, max(held))  # what a site made of a round in which it was refused is later
            for key, vector in other.clients[name].items():
                assert torch.equal(held[counted].own[key], vector)


@pytest.mark.parametrize("policy", ["averaged", "frozen"])
def test_running_statistics_travel_in_the_same_record(policy: str) -> None:
    model = network(nn.BatchNorm1d(4), nn.Linear(4, 6), batch_norm=policy)
    clients_data = take_stock([mixed_client(), target_client(), source_client()], fedmm.DANN(), 3)
    problem, _ = adaptation_problem(clients_data, model, fedmm.DANN(), seed=0, batch_size=8)
    engines = (each(problem, FedMM(local_steps=2), 5) for each in (flower_engine, InProcess))
    for (one, record), (other, expected) in zip(*(played(engine, 5) for engine in engines), strict=True):
        assert_equal_states(bare(one), bare(other))
        assert (record.bytes_up, record.bytes_down) == (expected.bytes_up, expected.bytes_down)


FAULTS = [
    {"unasked": 0.3},
    {"unheard": 0.3},
    {"late": 0.4},
    {"twice": 0.4},
    {"stale": 0.2},
    {"unasked": 0.15, "unheard": 0.15, "late": 0.15, "twice": 0.2, "stale": 0.1},
]


@pytest.mark.parametrize("kind", [FedMM, FedGDAGT])
@pytest.mark.parametrize("faults", FAULTS, ids="+".join)
def test_whatever_fails_on_the_way_the_server_ends_where_the_reference_by_messages_does(
    faults: dict[str, float], kind: type[Algorithm]
) -> None:
    """With FedGDAGT a site that fails in an odd round has answered the first of a pair, and then died."""
    problem = random_game(2, clients=3).problem()
    ends = [
        survived(
            engine(problem, with_options(kind), 40, Terms(restore=True), Unreliable(3, **faults)),
            40,
            crashes=0.1,
            seed=4,
        )
        for engine in (flower_engine, Messaging)
    ]
    (one, records), (other, expected) = ends
    assert_equal_states(bare(one), bare(other))
    assert [each.clients for each in records] == [each.clients for each in expected]


def test_flowers_own_loop_runs_the_strategy_as_it_is() -> None:
    problem = random_game(1, clients=3).problem()
    engine = flower_engine(problem, FedMM(), 5)
    result = engine.strategy.start(engine.grid, engine.strategy.arrays, num_rounds=5, timeout=1.0)
    *_, (expected, _) = played(InProcess(problem, FedMM(), 5), 5)
    assert torch.equal(engine.strategy.state.z, expected.z)
    assert list(result.arrays) == ["min.omega", "max.psi"]
    joined = torch.cat([torch.from_numpy(array.numpy().copy()) for array in result.arrays.values()])
    assert torch.equal(joined, expected.z)


def test_nodes_in_any_order_are_summed_by_the_names_of_their_sites() -> None:
    engine = flower_engine(random_game(1, clients=3).problem(), FedMM(), 2)
    assert isinstance(engine.grid, LoopbackGrid)
    nodes = list(engine.grid.nodes.items())
    assert [name for _, name in sorted(nodes)] == ["client-2", "client-1", "client-0"]
    engine.run_round(engine.start())
    assert engine.strategy.roster.nodes == {name: node for node, name in nodes}


def test_flowers_clipping_mod_and_its_wrapper_apply_to_the_one_record() -> None:
    problem = random_game(1, clients=3).problem()
    engine = flower_engine(problem, FedAvgGDA(), 4, mods=[fixedclipping_mod])
    engine.strategy.configure_train(
        1, engine.strategy.arrays, ConfigRecord(), engine.grid
    )  # sites introduce themselves
    engine.grid.asked.clear()
    engine.strategy.state = engine.start()
    wrapped = DifferentialPrivacyClientSideFixedClipping(engine.strategy, 0.0, 0.05, 3)
    wrapped.start(engine.grid, engine.strategy.arrays, num_rounds=4, timeout=1.0)
    *_, (expected, _) = played(InProcess(problem, FedAvgGDA(), 4, Terms(transmission=fedmm.ClippedUpdate(0.05))), 4)
    torch.testing.assert_close(engine.strategy.state.z, expected.z, rtol=1e-9, atol=1e-12)


def test_a_point_that_a_wrapper_made_is_gone_on_from() -> None:
    problem = random_game(1, clients=3).problem()
    engine = flower_engine(problem, FedAvgGDA(), 2)
    strategy = engine.strategy
    moved = ArrayRecord({name: Array(array.numpy() + 1.0) for name, array in strategy.arrays.items()})
    messages = strategy.configure_train(1, moved, ConfigRecord(), engine.grid)
    assert len(messages) == 3
    assert torch.equal(strategy.state.z, problem.start + 1.0)
