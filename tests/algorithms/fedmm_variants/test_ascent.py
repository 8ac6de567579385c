"""FedMM with plain ascent of the adversary at the server: its saddle is FedMM's, and its adversary has no momentum."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import FLOAT64, Game, Quadratic, games, golden_game, played, random_game
from torch import Tensor

from fedmm import AscentFedMM, FedMM, FedmmError
from fedmm.core.engine import FederatedState
from fedmm.engines.in_process import InProcess

ETA, MU, STEPS, THETA = 0.01, 2.0, 20, 1.75


def linear_game(fields: list[list[float]]) -> Game:
    """Clients whose fields (df/dx, -df/dy) are constant."""

    def number(value: float, *shape: int) -> Tensor:
        return torch.full(shape, value, dtype=FLOAT64)

    zero = number(0.0, 1, 1)
    return Game([Quadratic(zero, zero, zero, number(x, 1), number(y, 1)) for x, y in fields])


def test_psi_steps_along_the_mean_field_from_the_first_round_on() -> None:
    # A constant field is recovered exactly, so psi moves by theta M eta F in every round: no momentum builds up.
    game = linear_game([[2.0, 3.0], [1.0, -1.0]])
    fields = torch.stack([client.field(torch.zeros(2, dtype=FLOAT64)) for client in game.clients])
    step = THETA * STEPS * ETA * fields.mean(0)[1]
    engine = InProcess(game.problem(), AscentFedMM(), 5)
    start = engine.start().z
    for number, (state, _) in enumerate(played(engine, 5), start=1):
        torch.testing.assert_close(state.z[1], start[1] - number * step, rtol=1e-12, atol=0)


def test_omega_moves_as_in_fedmm() -> None:
    game = linear_game([[2.0, 3.0], [1.0, -1.0]])
    one, other = game.play(AscentFedMM(), 4), game.play(FedMM(penalty_min=2.0, penalty_max=2.0), 4)
    assert torch.equal(one.z[0], other.z[0])
    assert not torch.equal(one.z[1], other.z[1])


@given(games, st.floats(0.2, 4.0))
@settings(max_examples=8)
def test_it_rests_where_fedmm_rests(game: Game, theta: float) -> None:
    algorithm = AscentFedMM(0.05, 0.05, local_steps=10, server_lr_max=theta)
    saddle = game.saddle
    duals = {name: {"dual": -each.field(saddle)} for name, each in zip(game.names, game.clients, strict=True)}
    resting = FederatedState(0, algorithm.init_server(saddle), duals)
    after, _ = InProcess(game.problem(), algorithm, 1).run_round(resting)
    torch.testing.assert_close(after.z, saddle, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after.model, saddle, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("steps", [20, {"client-1": 5, "client-2": 20, "client-3": 35}], ids=["alike", "unlike"])
def test_it_reaches_the_saddle_and_its_duals_become_minus_the_clients_fields(steps: int | dict[str, int]) -> None:
    game = golden_game() if isinstance(steps, int) else random_game(3)
    if not isinstance(steps, int):
        steps = dict(zip(game.names, steps.values(), strict=True))
    state = game.play(AscentFedMM(local_steps=steps), 1500)
    assert game.error(state) < 1e-9
    for name, client in zip(game.names, game.clients, strict=True):
        torch.testing.assert_close(state.clients[name]["dual"], -client.field(game.saddle), rtol=0, atol=1e-7)


@pytest.mark.parametrize("steps", [20, 100, 1000])
def test_more_local_steps_never_make_the_step_longer_than_a_client_could_go(steps: int) -> None:
    layout = golden_game().layout
    c = AscentFedMM(0.05, 0.05, local_steps=steps).coefficients(layout, 0, 1)
    torch.testing.assert_close(c.ascent.max(), torch.tensor(THETA / MU, dtype=c.ascent.dtype))


def test_a_client_that_lost_its_dual_gets_it_back() -> None:
    algorithm, game = AscentFedMM(), golden_game()
    state = game.play(algorithm, 30)
    own = state.clients[game.names[0]]["dual"]
    c = algorithm.coefficients(game.layout, 30, 31)
    restored = algorithm.restored_client({"z": state.z}, {"z": own / c.penalty}, c)
    torch.testing.assert_close(restored["dual"], own, rtol=1e-12, atol=1e-12)


def test_the_average_predicts() -> None:
    game = linear_game([[2.0, 3.0], [1.0, -1.0]])
    engine = InProcess(game.problem(), AscentFedMM(average_rate=0.4), 40)
    average = engine.start().z
    for t, (state, _) in enumerate(played(engine, 40)):
        average = average + max(0.4, 10 / (t + 10)) * (state.z - average)
        torch.testing.assert_close(state.model, average, rtol=1e-12, atol=1e-12)
    assert not torch.equal(state.model, state.z)


def test_a_rate_of_one_keeps_no_average() -> None:
    state = golden_game().play(AscentFedMM(average_rate=1.0), 9)
    assert torch.equal(state.model, state.z)


def test_other_algorithms_predict_with_the_servers_point() -> None:
    state = golden_game().play(FedMM(), 3)
    assert state.model is state.z


def growth(theta: float | None, convex: float, beta: float, mu: float = MU) -> float:
    """How much a round stretches the distance from the saddle of convex/2 x^2 + beta x y, after many rounds.

    theta: None for FedMM. In plain arithmetic, for the means of all clients.
    """
    field = torch.tensor([[convex, beta], [-beta, 0.0]], dtype=FLOAT64)
    response = 1 - (1 - mu * ETA) ** STEPS

    def one_round(z: Tensor, dual: Tensor) -> Tensor:
        point = z
        for _ in range(STEPS):
            point = point - ETA * (field @ point + mu * (point - z) + dual)
        after = dual + mu * (point - z)
        moved = point + after / mu
        if theta is not None:
            moved[1] = z[1] + theta * STEPS * ETA * (mu / response * (point - z) + dual)[1]
        return torch.cat([moved, after])

    matrix = torch.stack([one_round(*unit.split(2)) for unit in torch.eye(4, dtype=FLOAT64)], dim=1)
    return float(torch.linalg.eigvals(matrix).abs().max())


@pytest.mark.parametrize("beta", [0.2, 0.5, 1.0])
def test_a_rotation_grows_less_than_with_fedmm(beta: float) -> None:
    assert growth(THETA, 0.0, beta) < growth(None, 0.0, beta)
    assert growth(THETA, 0.1, beta) < growth(None, 0.1, beta)


def test_the_growth_is_what_the_engine_does() -> None:
    # f = 0.05 x^2 + 0.5 x y for every client; after many rounds the distance changes by the largest eigenvalue.
    one = torch.ones(1, 1, dtype=FLOAT64)
    zero = torch.zeros(1, dtype=FLOAT64)
    game = Game([Quadratic(0.1 * one, 0.5 * one, 0.0 * one, zero, zero)] * 2)
    engine = InProcess(replace(game.problem(), start=torch.ones(2, dtype=FLOAT64)), AscentFedMM(), 400)
    lengths = [float(state.z.norm()) for state, _ in played(engine, 400)]
    assert (lengths[-1] / lengths[99]) ** (1 / 300) == pytest.approx(growth(THETA, 0.1, 0.5), abs=2e-3)


@pytest.mark.parametrize(("option", "value"), [("server_lr_max", 0.0), ("average_rate", 1.5), ("average_rate", -0.1)])
def test_a_bad_option_is_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(FedmmError, match=option):
        AscentFedMM(**{option: value})
