"""Numbers that clients report, weights that the server sets, and draws by them, on every engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import FLOAT64, FieldClient, generator, played, random_game, with_options
from torch import Tensor

import fedmm
from fedmm import ALGORITHMS, FedmmError, Messaging, Terms
from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, State
from fedmm.core.federation import draw_order, weighted_draw
from fedmm.core.layout import Layout
from fedmm.core.problem import FederatedProblem
from fedmm.engines.in_process import InProcess
from fedmm.engines.messages import Invitation, Update
from fedmm.remote.messaging import Exchange
from fedmm.remote.packed import Malformed, Packed
from fedmm.remote.packing import pack_invitation, pack_update, read_invitation, read_update

REPORTING = {name: kind for name, kind in ALGORITHMS.items() if kind.reports}
each_reporting = pytest.mark.parametrize("kind", REPORTING.values(), ids=REPORTING)
SKIP = Terms(on_bad_update="skip")


def test_these_have_reports() -> None:
    assert set(REPORTING) == {"afl", "fedmm_agnostic", "drfa", "q_ffl"}


# What reaches the server ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listening(fedmm.FedAvgGDA):
    """Keeps what it hears."""

    name = "listening"
    summary = "keeps what it hears"
    reports = ("loss", "twice")

    def init_per_client(self, clients: int, like: Tensor) -> State:
        zeros = torch.zeros_like(like[..., :1]).repeat_interleave(clients, dim=-1)
        return {"heard": zeros, "counted": zeros}

    def report(self, loss: Tensor, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        return {"loss": loss, "twice": 2 * loss}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        assert uploads.counted is not None
        assert torch.equal(uploads.scalars["twice"], 2 * uploads.scalars["loss"])
        counted = uploads.counted.to(server["z"].dtype)
        return {**super().server_update(server, uploads, c), "heard": uploads.scalars["loss"], "counted": counted}


def test_the_server_hears_the_value_where_the_steps_began_of_those_who_take_part() -> None:
    game = random_game(1, clients=4)
    engine = InProcess(game.problem(), Listening(local_steps=3), 6, Terms(participation=0.5))
    states = [engine.start(), *(state for state, _ in played(engine, 6))]
    for before, after in pairwise(states):
        present = [after.counted.get(name) == before.round for name in game.names]
        expected = [float(q.value(before.z)) if there else 0.0 for q, there in zip(game.clients, present, strict=True)]
        assert sum(present) == 2
        assert after.server["heard"].tolist() == expected
        assert after.server["counted"].tolist() == [float(there) for there in present]


def test_weights_of_clients_are_in_what_they_report() -> None:
    heard = []
    for weights, factors in (([3.0, 1.0], (1.0, 1.0)), (None, (1.5, 0.5))):
        functions = [lambda x, y, k=k: k * ((x - 2.0) ** 2 - y**2).sum() for k in factors]
        start = (torch.zeros(1, dtype=FLOAT64), torch.zeros(1, dtype=FLOAT64))
        heard.append(fedmm.solve(functions, start, fedmm.AFL(0.1, 0.1), 4, weights=weights))
    one, other = heard
    torch.testing.assert_close(one.omega, other.omega, rtol=1e-14, atol=0)
    torch.testing.assert_close(one.server["weights"], other.server["weights"], rtol=1e-14, atol=0)
    assert float(one.server["weights"][0]) > 0.5


def test_a_client_without_values_is_refused() -> None:
    game = random_game(1)
    clients = [FieldClient(name, q.field) for name, q in zip(game.names, game.clients, strict=True)]
    engine = InProcess(FederatedProblem(game.layout, torch.cat(game.start), clients), fedmm.AFL(), 1)
    with pytest.raises(
        FedmmError, match="afl needs the value of each client's function, but client 'client-0' reports"
    ):
        engine.run_round(engine.start())


@each_reporting
def test_numbers_of_clients_are_not_sent_to_them(kind: type[Algorithm]) -> None:
    server = InProcess(random_game(1).problem(), with_options(kind), 2).server
    state = server.start()
    for invitation in server.invitations(state).values():
        assert "weights" not in invitation.sent


@each_reporting
def test_bytes_are_those_of_vectors_and_numbers(kind: type[Algorithm]) -> None:
    game, algorithm = random_game(1, clients=3), with_options(kind)
    weighs = algorithm.importance({"weights": torch.ones(3)}) is not None
    vectors = 2 if kind is fedmm.DRFA else 1
    for state, record in played(InProcess(game.problem(), algorithm, 4), 4):
        sent = 0 if algorithm.reports_only(state.round - 1) else vectors * game.layout.size
        assert record.bytes_up == 3 * 8 * (sent + len(algorithm.reports))
        assert record.bytes_down == 3 * 8 * (game.layout.size + weighs)


# Refusals -------------------------------------------------------------------------------------------------------------


@dataclass
class Lying(Exchange):
    """A client reports something else than it found."""

    client: str
    scalars: dict[str, float]

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        return [replace(each, scalars=self.scalars) if each.client == self.client else each for each in answers]


LIES = [
    ({"loss": math.nan}, "its 'loss' is not finite"),
    ({"loss": -math.inf}, "its 'loss' is not finite"),
    ({"loss": 1e200}, "its 'loss' is 1e+200, which is too large"),
    ({}, "its update lacks the number 'loss'"),
    ({"loss": 1.0, "more": 1.0}, "its update holds an unknown number 'more'"),
]


@pytest.mark.parametrize(("scalars", "reason"), LIES, ids=[reason for _, reason in LIES])
def test_a_number_that_cannot_be_is_refused_and_the_others_go_on(scalars: dict[str, float], reason: str) -> None:
    game = random_game(1, clients=3)
    engine = Messaging(game.problem(), fedmm.AFL(), 2, SKIP, Lying("client-1", scalars))
    for state, record in played(engine, 2):
        assert record.refused == (("client-1", reason),)
        assert bool(state.server["weights"].isfinite().all())
        assert float(state.server["weights"].sum()) == pytest.approx(1.0)


def test_a_number_that_is_not_finite_ends_a_run_that_refuses_nothing() -> None:
    engine = Messaging(random_game(1).problem(), fedmm.AFL(), 2, Terms(), Lying("client-1", {"loss": math.nan}))
    with pytest.raises(fedmm.Diverged, match="client-1"):
        engine.run_round(engine.start())


@each_reporting
def test_noise_and_masks_are_refused(kind: type[Algorithm]) -> None:
    problem = random_game(1, clients=4).problem()
    for trust in ("nobody", "server"):
        noise = Terms(transmission=fedmm.GaussianUpdate(1.0, 1.0, 1.0, 1.0, trust=trust))
        with pytest.raises(FedmmError, match=f"updates cannot carry noise with {kind.name}: .*'loss'.* such as fedmm"):
            InProcess(problem, with_options(kind), 2, noise)
    with pytest.raises(FedmmError, match=f"secure_sum cannot hide updates with {kind.name}: .*'loss'.* such as fedmm"):
        InProcess(problem, with_options(kind), 2, Terms(secure_sum=True))


def test_draws_by_weight_are_refused_with_noise() -> None:
    @dataclass(frozen=True)
    class Drawn(fedmm.FedAvgGDA):
        name = "drawn"
        draws_by_importance = True

        def importance(self, server: State) -> Tensor:
            return torch.ones(3, dtype=FLOAT64)

    noise = Terms(transmission=fedmm.GaussianUpdate(1.0, 1.0, 1.0, 1.0))
    with pytest.raises(FedmmError, match="uniformly drawn clients, and this algorithm draws them by weight"):
        InProcess(random_game(1).problem(), Drawn(), 2, noise)


def test_draws_need_an_importance() -> None:
    @dataclass(frozen=True)
    class Drawn(fedmm.FedAvgGDA):
        name = "drawn"
        draws_by_importance = True

    with pytest.raises(FedmmError, match="Drawn sets draws_by_importance, so it must define importance"):
        Drawn()


@pytest.mark.parametrize("aggregation", [fedmm.CoordinateMedian(), fedmm.TrimmedMean(0.3)], ids=lambda a: a.name)
@each_reporting
def test_a_robust_centre_of_the_points_works_with_reports(kind: type[Algorithm], aggregation: Any) -> None:
    problem = random_game(2, clients=5).problem()
    terms = Terms(aggregation=aggregation, participation=0.8)
    engines = (each(problem, with_options(kind), 6, terms) for each in (Messaging, InProcess))
    for (one, _), (other, _) in zip(*(played(engine, 6) for engine in engines), strict=True):
        assert all(torch.equal(vector, other.server[name]) for name, vector in one.server.items())


# Messages -------------------------------------------------------------------------------------------------------------

LAYOUT = Layout({"x": (2,)}, {"y": (1,)})


def test_numbers_travel_to_the_bit() -> None:
    numbers = torch.randn(3, dtype=FLOAT64, generator=generator(0)).tolist()
    update = Update(1, "a", {}, scalars={"loss": numbers[0], "other": numbers[1]})
    assert read_update(LAYOUT, pack_update(LAYOUT, update)) == update
    packed = pack_invitation(LAYOUT, Invitation(1, {"z": torch.zeros(3)}, importance=numbers[2]))
    assert read_invitation(LAYOUT, packed.arrays, packed.about).importance == numbers[2]
    plain = pack_invitation(LAYOUT, Invitation(1, {"z": torch.zeros(3)}))
    assert "importance" not in plain.about


@pytest.mark.parametrize("value", ["much", True, 10**400])
def test_what_is_no_number_cannot_be_read(value: Any) -> None:
    about = {"client": "a", "round": 1, "scalar/loss": value}
    with pytest.raises(Malformed, match="scalar/loss"):
        read_update(LAYOUT, Packed({}, about, {}))


# Draws ----------------------------------------------------------------------------------------------------------------


def drawn(weights: Sequence[float], count: int, seed: int, t: int) -> tuple[list[bool], Tensor]:
    importance = torch.tensor(weights, dtype=FLOAT64)
    importance = importance * len(weights) / importance.sum()
    order, start = draw_order([f"c{i:02d}" for i in range(len(weights))], seed, t)
    who, factors = weighted_draw(importance, torch.tensor([count]), torch.tensor(order), torch.tensor([start]).double())
    return who.tolist(), factors


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda each: sum(each) > 1e-3),
    st.integers(1, 9),
    st.integers(0, 99),
)
def test_as_many_are_drawn_as_are_to_take_part(weights: list[float], count: int, t: int) -> None:
    count = min(count, len(weights))
    who, factors = drawn(weights, count, 0, t)
    assert sum(who) == count
    assert bool((factors >= 0).all())


def test_everyone_is_drawn_with_its_own_weight_where_all_take_part() -> None:
    who, factors = drawn([0.5, 0.3, 0.2, 0.0], 4, 0, 3)
    assert all(who)
    torch.testing.assert_close(factors, torch.tensor([2.0, 1.2, 0.8, 0.0], dtype=FLOAT64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weights", [[0.3, 0.3, 0.2, 0.1, 0.1], [0.9, 0.05, 0.03, 0.02, 0.0]], ids=["even", "uneven"])
def test_the_mean_over_those_drawn_is_the_weighted_sum(weights: list[float]) -> None:
    # Of 1000 rounds, in which each number is at most 1/2, or the same in all: 5 standard errors are below 0.05.
    mean = np.zeros(5)
    for t in range(1000):
        who, factors = drawn(weights, 2, 1, t)
        mean += np.array(who) * factors.numpy() / 2
    np.testing.assert_allclose(mean / 1000, weights, atol=0.05)


def test_the_draw_is_a_function_of_seed_and_round() -> None:
    weights = [0.3, 0.3, 0.2, 0.1, 0.1]
    draws = [drawn(weights, 2, seed, t)[0] for seed in range(2) for t in range(20)]
    assert draws == [drawn(weights, 2, seed, t)[0] for seed in range(2) for t in range(20)]
    assert draws[:20] != draws[20:]


def test_replicas_draw_side_by_side_as_each_alone() -> None:
    rows = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25]], dtype=FLOAT64)
    orders, starts = zip(*(draw_order(list("abcd"), seed, 5) for seed in (0, 1)), strict=True)
    begin = torch.tensor(starts, dtype=FLOAT64).unsqueeze(-1)
    together = weighted_draw(4 * rows, torch.tensor([[2], [3]]), torch.tensor(orders), begin)
    for r, count in enumerate((2, 3)):
        alone = weighted_draw(4 * rows[r], torch.tensor([count]), torch.tensor(orders[r]), begin[r])
        assert all(torch.equal(one[r], other) for one, other in zip(together, alone, strict=True))
