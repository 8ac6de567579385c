"""Server and sites that exchange messages: without faults, and with one fault at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from faults.exchanges import Unreliable, survived
from problems import mixed_client, network, played, random_game, source_client, takes_noise, target_client, with_options
from torch import nn

import fedmm
from fedmm import ALGORITHMS, CoordinateMedian, FedMM, ScaffoldGDA, Terms
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState
from fedmm.engines.in_process import InProcess
from fedmm.engines.messages import Update
from fedmm.remote.messaging import Exchange, Messaging
from fedmm.training.clients import take_stock
from fedmm.training.problem import adaptation_problem

each_algorithm = pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=ALGORITHMS)


def assert_equal_states(one: FederatedState, other: FederatedState) -> None:
    def flat(state: FederatedState) -> dict[str, torch.Tensor]:
        groups = {"server": state.server, "statistics": state.statistics}
        for part in ("clients", "client_statistics", "totals"):
            groups |= {f"{part} {name}": own for name, own in getattr(state, part).items()}
        return {f"{group}: {name}": t for group, named in groups.items() for name, t in named.items()}

    assert one.round == other.round
    assert flat(one).keys() == flat(other).keys()
    for name, tensor in flat(one).items():
        assert torch.equal(tensor, flat(other)[name]), name


TERMS = [
    Terms(),
    Terms(participation=0.5),
    Terms(aggregation=CoordinateMedian(), max_update_ratio=1.5),
    Terms(participation=0.75, restore=True, transmission=fedmm.ClippedUpdate(0.1)),
    Terms(participation=0.75, uploads="int8", broadcasts="fp16"),
    Terms(transmission=fedmm.GaussianUpdate(0.1, 0.2, 0.5, 0.5), uploads="fp16", broadcasts="int8"),
]


@each_algorithm
@pytest.mark.parametrize("terms", TERMS, ids=range(len(TERMS)))
def test_without_faults_messages_change_nothing(kind: type[Algorithm], terms: Terms) -> None:
    problem = random_game(1, clients=4).problem()
    if terms.transmission.private and not takes_noise(kind):
        pytest.skip("refused: tests/training/test_privacy_attack.py")
    engines = (each(problem, with_options(kind), 8, terms) for each in (Messaging, InProcess))
    for (one, record), (other, expected) in zip(*(played(engine, 8) for engine in engines), strict=True):
        assert_equal_states(one, other)
        assert replace(record, seconds=0.0) == replace(expected, seconds=0.0)


@pytest.mark.parametrize("policy", ["averaged", "frozen", "local"])
def test_running_statistics_travel_as_they_do_without_messages(policy: str) -> None:
    model = network(nn.BatchNorm1d(4), nn.Linear(4, 6), batch_norm=policy)
    clients_data = take_stock([mixed_client(), target_client(), source_client()], fedmm.DANN(), 3)
    problem, _ = adaptation_problem(clients_data, model, fedmm.DANN(), seed=0, batch_size=8)
    engines = (each(problem, FedMM(local_steps=2), 5, Terms(participation=0.67)) for each in (Messaging, InProcess))
    for (one, record), (other, expected) in zip(*(played(engine, 5) for engine in engines), strict=True):
        assert_equal_states(one, other)
        assert (record.bytes_up, record.bytes_down) == (expected.bytes_up, expected.bytes_down)


# One fault at a time --------------------------------------------------------------------------------------------------


@dataclass
class Mishap(Exchange):
    """Something happens to the answers of one round."""

    at: int
    what: Any

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        return self.what(list(answers)) if t == self.at else answers


def after_mishap(what: Any, algorithm: Algorithm, rounds: int, **options: Any) -> list[Any]:
    problem = random_game(1, clients=3).problem()
    return list(played(Messaging(problem, algorithm, rounds, exchange=Mishap(1, what), **options), rounds))


@pytest.mark.parametrize("algorithm", [FedMM(), ScaffoldGDA(), fedmm.SmoothedFedMM()], ids=lambda a: a.name)
def test_a_client_whose_update_was_lost_goes_on_from_its_older_state(algorithm: Algorithm) -> None:
    first, second, third = after_mishap(lambda answers: answers[1:], algorithm, 3)
    assert [each[1].clients for each in (first, second, third)] == [3, 2, 3]
    lost, other = "client-0", "client-1"
    for key, vector in second[0].clients[lost].items():
        assert torch.equal(vector, first[0].clients[lost][key])
    assert second[0].counted == {"client-0": 0, "client-1": 1, "client-2": 1}
    assert not torch.equal(second[0].clients[other][key], first[0].clients[other][key])
    # The next round is that of a federation in which the client was away in this one.
    engine = InProcess(random_game(1, clients=3).problem(), algorithm, 3)
    expected, _ = engine.run_round(second[0])
    assert torch.equal(third[0].z, expected.z)
    assert_equal_states(replace(third[0], counted={}), replace(expected, counted={}))


def test_a_repeated_update_is_counted_once() -> None:
    plain = after_mishap(lambda answers: answers, FedMM(), 3)
    twice = after_mishap(lambda answers: [each for each in answers for _ in range(2)], FedMM(), 3)
    for (one, _), (other, _) in zip(plain, twice, strict=True):
        assert_equal_states(one, other)
    reason = "it has already sent an update in this round"
    assert [(each.client, each.reason) for each in twice[1][1].refused] == [(f"client-{n}", reason) for n in range(3)]
    assert twice[1][1].bytes_up == 2 * plain[1][1].bytes_up


def test_nobody_at_all_leaves_the_server_where_it_is() -> None:
    first, second, third = after_mishap(lambda answers: [], FedMM(), 3)
    assert second[1].clients == 0
    assert (second[1].drift, second[1].consensus_gap, second[1].metrics) == (0.0, 0.0, {})
    assert torch.equal(second[0].z, first[0].z)
    assert torch.equal(second[0].server["mean_dual"], first[0].server["mean_dual"])
    assert not torch.equal(third[0].z, second[0].z)


def test_a_late_update_is_refused_by_its_round() -> None:
    kept: list[Update] = []

    class Late(Exchange):
        def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
            if t == 1:
                kept.append(answers[0])
                return answers[1:]
            return [*kept, *answers] if t == 2 else answers

    *_, (_, record) = played(Messaging(random_game(1).problem(), FedMM(), 3, exchange=Late()), 3)
    assert [tuple(each) for each in record.refused] == [("client-0", "its update is for round 2, and this is round 3")]
    assert record.clients == 3


def test_an_answer_to_a_server_that_has_restarted_since_is_refused() -> None:
    kept: list[Update] = []

    class Delayed(Exchange):
        def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
            if t == 1 and not kept:
                kept.append(answers[0])
                return answers[1:]
            return [*kept, *answers[1:]] if t == 1 else answers

    engine = Messaging(random_game(1).problem(), FedMM(), 3, exchange=Delayed())
    state, _ = engine.run_round(engine.start())
    engine.run_round(state)
    _, record = engine.run_round(state)  # again from the state before
    reason = "its update answers an invitation from before the server restarted"
    assert [tuple(each) for each in record.refused] == [("client-0", reason)]
    assert record.clients == 2


@pytest.mark.parametrize("kind", [FedMM, ScaffoldGDA, fedmm.SmoothedFedMM], ids=lambda kind: kind.name)
def test_a_client_that_lost_its_state_gets_it_back_from_the_servers_sums(kind: type[Algorithm]) -> None:
    problem = random_game(1, clients=3).problem()
    engine = Messaging(problem, with_options(kind), 6, Terms(restore=True))
    state = engine.start()
    for _ in range(3):
        state, record = engine.run_round(state)
    before = state.clients["client-1"]
    memory = engine.sites["client-1"].memory
    for held in list(memory.held):
        memory.forget(held)
    state, record = engine.run_round(state)
    assert [tuple(each) for each in record.refused] == [("client-1", "it has lost its state after round 3")]
    assert record.clients == 2
    usual = record.bytes_down
    state, record = engine.run_round(state)
    assert (record.clients, record.refused) == (3, ())
    assert record.bytes_down == usual + 8 * problem.layout.size
    restored = memory.held[2].own
    for name in ("dual", "control"):
        if name in before:
            torch.testing.assert_close(restored[name], before[name], rtol=1e-12, atol=1e-14)


def test_without_the_servers_sums_a_client_that_lost_its_state_stays_out_and_is_named() -> None:
    engine = Messaging(random_game(1, clients=3).problem(), FedMM(), 6)
    state, _ = engine.run_round(engine.start())
    for held in list(engine.sites["client-1"].memory.held):
        engine.sites["client-1"].memory.forget(held)
    for _ in range(3):
        state, record = engine.run_round(state)
        assert [tuple(each) for each in record.refused] == [("client-1", "it has lost its state after round 1")]
        assert record.clients == 2


def test_a_client_without_a_state_of_its_own_has_none_to_lose() -> None:
    exchange = Unreliable(stale=1.0)
    state, records = survived(Messaging(random_game(1).problem(), fedmm.FedAvgGDA(), 4, exchange=exchange), 4)
    assert [record.clients for record in records] == [3] * 4
    assert torch.equal(state.z, random_game(1).play(fedmm.FedAvgGDA(), 4).z)
