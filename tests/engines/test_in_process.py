from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from problems import (
    FLOAT64,
    FieldClient,
    adapt,
    mixed_client,
    network,
    played,
    random_game,
    target_client,
    with_options,
)
from torch import Tensor, nn

import fedmm
from fedmm import ALGORITHMS, FedmmError
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState
from fedmm.core.layout import Layout
from fedmm.core.problem import FederatedProblem, LocalReport, Statistics
from fedmm.engines.in_process import InProcess
from fedmm.training.clients import take_stock
from fedmm.training.problem import adaptation_problem

each_algorithm = pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=ALGORITHMS)


def constant(name: str, *field: float) -> FieldClient:
    """A client whose field is the same everywhere."""
    return FieldClient(name, lambda z: torch.tensor(field, dtype=z.dtype), torch.sum)


def federation(*clients: FieldClient, dtype: torch.dtype = FLOAT64) -> FederatedProblem:
    return FederatedProblem(Layout({"x": (1,)}, {"y": (1,)}, dtype=dtype), torch.zeros(2, dtype=dtype), clients)


# What a round measures ------------------------------------------------------------------------------------------------


def test_drift_gap_and_dual_norm_are_those_computed_by_hand() -> None:
    # From 0 with eta = 0.1 and one step, fields (30, 40) and (0, -20): z_1 = (-3, -4), z_2 = (0, 2).
    # drift: (5 + 2) / 2 = 3.5. Mean (-1.5, -1): deviations (-1.5, -3) and (1.5, 3), both of square 11.25.
    # dual_i = mu z_i with mu = 2: squares 100 and 16, root of their mean sqrt(58).
    problem = federation(constant("a", 30.0, 40.0), constant("b", 0.0, -20.0))
    _, record = InProcess(problem, fedmm.FedMM(0.1, 0.1, 2.0, 2.0, local_steps=1), 1).run_round(
        InProcess(problem, fedmm.FedMM(), 1).start()
    )
    assert record.round == 1
    assert record.drift == pytest.approx(3.5, abs=1e-14)
    assert record.consensus_gap == pytest.approx(math.sqrt(11.25), abs=1e-14)
    assert record.dual_norm == pytest.approx(math.sqrt(58.0), abs=1e-14)
    assert record.seconds > 0


def test_an_algorithm_without_duals_has_none() -> None:
    problem = federation(constant("a", 30.0, 40.0), constant("b", 0.0, -20.0))
    for algorithm in (fedmm.FedAvgGDA(0.1, 0.1, local_steps=1), fedmm.ScaffoldGDA(0.1, 0.1, local_steps=1)):
        *_, (_, record) = played(InProcess(problem, algorithm, 2), 2)
        assert record.dual_norm == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("algorithm", "vectors"),
    [
        (fedmm.FedSGDA(), 1),
        (fedmm.FedAvgGDA(), 1),
        (fedmm.FedProxGDA(), 1),
        (fedmm.FedMM(), 1),
        (fedmm.ScaffoldGDA(), 2),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_bytes_are_counted_for_what_travels(algorithm: Algorithm, vectors: int, dtype: torch.dtype) -> None:
    # 3 clients, z of 2 numbers of 4 or 8 bytes, one or two such vectors each way. FedMM's duals never travel.
    problem = federation(constant("a", 1.0, 1.0), constant("b", 1.0, 1.0), constant("c", 1.0, 1.0), dtype=dtype)
    expected = 3 * 2 * dtype.itemsize * vectors
    for _, record in played(InProcess(problem, algorithm, 2), 2):
        assert (record.bytes_up, record.bytes_down) == (expected, expected)


@pytest.mark.parametrize(("policy", "travels"), [("averaged", True), ("frozen", False), ("local", False)])
def test_running_statistics_are_counted_where_they_travel(policy: str, travels: bool) -> None:
    # BatchNorm1d(4) keeps a mean and a variance of 4 float32 and one int64 count: 40 bytes. Two clients.
    model = network(nn.BatchNorm1d(4), nn.Linear(4, 6), batch_norm=policy)
    adapted = adapt(model=model)
    parameters = 2 * 4 * adapted.state.z.numel()
    expected = parameters + (2 * 40 if travels else 0)
    assert [(row["bytes_up"], row["bytes_down"]) for row in adapted.history] == [(expected, expected)] * 2


def test_metrics_are_means_over_the_clients_that_report_them() -> None:
    class Reporting(FieldClient):
        def close(self) -> LocalReport:
            return LocalReport({"loss": 1.0} if self.name == "a" else {"loss": 4.0, "extra": 7.0})

    clients = [Reporting(name, torch.ones_like) for name in "ab"]
    _, record = next(played(InProcess(federation(*clients), fedmm.FedSGDA(), 1), 1))
    assert record.metrics == {"loss": 2.5, "extra": 7.0}


# State in, state out --------------------------------------------------------------------------------------------------


def copied(state: FederatedState) -> FederatedState:
    def tensors(named: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in named.items()}

    return replace(
        state,
        server=tensors(state.server),
        clients={name: tensors(own) for name, own in state.clients.items()},
        statistics=tensors(state.statistics),
        client_statistics={name: tensors(own) for name, own in state.client_statistics.items()},
    )


def assert_equal_states(one: FederatedState, other: FederatedState) -> None:
    def flat(state: FederatedState) -> dict[str, Tensor]:
        groups = {"server": state.server, "statistics": state.statistics}
        groups |= {f"client {name}": own for name, own in state.clients.items()}
        groups |= {f"statistics {name}": own for name, own in state.client_statistics.items()}
        return {f"{group}: {name}": t for group, named in groups.items() for name, t in named.items()}

    assert one.round == other.round
    assert flat(one).keys() == flat(other).keys()
    for name, tensor in flat(one).items():
        assert torch.equal(tensor, flat(other)[name]), name


def assert_rounds_are_pure(engine: InProcess) -> None:
    state = engine.start()
    for _ in range(3):
        before = copied(state)
        after, _ = engine.run_round(state)
        again, _ = engine.run_round(state)
        assert_equal_states(state, before)
        assert_equal_states(after, again)
        assert torch.equal(after.z, state.z) == engine.algorithm.reports_only(state.round)
        state = after


@each_algorithm
def test_run_round_leaves_its_input_untouched_and_repeats_itself(kind: type[Algorithm]) -> None:
    assert_rounds_are_pure(InProcess(random_game(1).problem(), with_options(kind), 4))


@pytest.mark.parametrize("policy", ["averaged", "frozen", "local"])
def test_run_round_leaves_running_statistics_untouched(policy: str) -> None:
    model = network(nn.BatchNorm1d(4), nn.Linear(4, 6), batch_norm=policy)
    clients_data = take_stock([mixed_client(), target_client()], fedmm.DANN(), 3)
    problem, _ = adaptation_problem(clients_data, model, fedmm.DANN(), seed=0, batch_size=8)
    assert_rounds_are_pure(InProcess(problem, fedmm.FedMM(local_steps=2), 4))


@each_algorithm
def test_a_run_continues_from_any_state_as_if_it_had_not_stopped(kind: type[Algorithm]) -> None:
    game = random_game(1)
    states = [state for state, _ in played(InProcess(game.problem(), with_options(kind), 6), 6)]
    resumed = copied(states[2])
    engine = InProcess(game.problem(), with_options(kind), 6)
    for expected in states[3:]:
        resumed, _ = engine.run_round(resumed)
        assert_equal_states(resumed, expected)


def test_clients_are_visited_in_order_of_their_names() -> None:
    visited: list[str] = []

    class Watched(FieldClient):
        def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> FieldClient:
            visited.append(self.name)
            return self

    clients = [Watched(name, torch.ones_like) for name in ("b", "c", "a")]
    next(played(InProcess(federation(*clients), fedmm.FedSGDA(), 1), 1))
    assert visited == ["a", "b", "c"]


# Refusals and divergence ----------------------------------------------------------------------------------------------


def test_two_clients_of_one_name_are_refused() -> None:
    with pytest.raises(FedmmError, match="two clients are called 'a'"):
        InProcess(federation(constant("a", 1.0, 1.0), constant("a", 2.0, 2.0)), fedmm.FedMM(), 1)


def test_a_federation_without_clients_is_refused() -> None:
    with pytest.raises(FedmmError, match="at least one client"):
        InProcess(federation(), fedmm.FedMM(), 1)


@each_algorithm
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_names_the_client_and_the_round(kind: type[Algorithm], bad: float) -> None:
    # The game is at rest, until client b's field is not finite beyond round 2.
    class Failing(FieldClient):
        def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> FieldClient:
            client = constant(self.name, bad, 0.0) if t == 2 else constant(self.name, 1.0, 1.0)
            return client.open_round(t, rounds, steps, statistics)

    problem = federation(constant("a", 1.0, 1.0), Failing("b", torch.ones_like), constant("c", 1.0, 1.0))
    engine = InProcess(problem, with_options(kind), 5)
    state = engine.start()
    for _ in range(2):
        state, _ = engine.run_round(state)
    before = copied(state)
    with pytest.raises(fedmm.Diverged, match="client 'b' produced non-finite parameters in round 3") as caught:
        engine.run_round(state)
    assert (caught.value.client, caught.value.round) == ("b", 3)
    assert_equal_states(state, before)


def test_a_server_whose_mean_overflows_has_diverged() -> None:
    # -3e38 is a float32, the sum of two of them is not.
    problem = federation(constant("a", 3e38, 0.0), constant("b", 3e38, 0.0), dtype=torch.float32)
    engine = InProcess(problem, fedmm.FedSGDA(1.0, 1.0), 1)
    with pytest.raises(fedmm.Diverged):
        engine.run_round(engine.start())


def test_a_round_of_fedsgda_is_a_step_along_the_mean_field() -> None:
    game = random_game(2)
    state = game.play(fedmm.FedSGDA(0.1, 0.1), 1)
    expected = -0.1 * torch.stack([client.offset for client in game.clients]).mean(0)
    torch.testing.assert_close(state.z, expected, rtol=1e-13, atol=0)
