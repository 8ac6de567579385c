"""Ascent FedMM with steps that follow psi's curvature: its saddle is FedMM's, and no longest step is too long."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import FLOAT64, Game, Quadratic, games, golden_game, played, random_game

from fedmm import AdaptiveFedMM, AscentFedMM, FedmmError
from fedmm.core.engine import FederatedState
from fedmm.engines.in_process import InProcess

STATE = {"z", "mean_dual", "average", "field", "moved", "turned", "travelled"}


def curved_game(curvature: float) -> Game:
    """Two clients that differ in their linear parts: 0.25 x^2 + 0.5 x y - curvature / 2 y^2."""
    one = torch.ones(1, 1, dtype=FLOAT64)
    linear = [(0.3, -0.2), (-1.0, 1.0)]
    return Game([Quadratic(0.5 * one, 0.5 * one, curvature * one, x * one[0], y * one[0]) for x, y in linear])


@pytest.mark.parametrize("curvature", [5.0, 10.0, 40.0])
def test_a_step_that_is_too_long_for_the_curvature_is_shortened(curvature: float) -> None:
    game = curved_game(curvature)
    assert game.error(game.play(AscentFedMM(server_lr_max=4.0), 100)) > 1e6
    assert game.error(game.play(AdaptiveFedMM(server_lr_max=4.0), 400)) < 1e-10


def test_without_curvature_it_is_ascent() -> None:
    game = golden_game()
    flat = Game([replace(each, C=0 * each.C) for each in game.clients])
    steps = {"lr_min": 0.001, "lr_max": 0.001}  # omega hardly moves, so the field in psi hardly turns
    one, other = flat.play(AdaptiveFedMM(**steps), 5), flat.play(AscentFedMM(**steps), 5)
    assert torch.equal(one.z, other.z)


def test_the_step_follows_the_curvature_along_the_path() -> None:
    # The rule as its box has it, from what the server kept.
    game = random_game(3)
    algorithm = AdaptiveFedMM(server_lr_max=8.0)
    engine = InProcess(game.problem(), algorithm, 30)
    before = engine.start()
    turned = travelled = torch.zeros((), dtype=FLOAT64)
    shortened = 0
    psi = slice(game.layout.min_size, None)
    for t, (state, _) in enumerate(played(engine, 30)):
        was, now = before.server, state.server
        rate = max(0.1, 1 / (t + 1))
        d = was["moved"][psi]
        turned = turned + rate * ((now["field"] - was["field"])[psi] @ d - turned)
        travelled = travelled + rate * (d @ d - travelled)
        longest = 8.0 * 20 * 0.01
        step = min(longest, float(travelled / turned)) if turned > 0 else longest
        shortened += step < longest
        torch.testing.assert_close(now["z"][psi], (was["z"] - step * now["field"])[psi], rtol=1e-9, atol=1e-12)
        before = state
    assert 0 < shortened < 30


@given(games, st.floats(0.2, 10.0), st.floats(0.01, 1.0))
@settings(max_examples=8)
def test_it_rests_where_fedmm_rests(game: Game, theta: float, rate: float) -> None:
    algorithm = AdaptiveFedMM(0.05, 0.05, local_steps=10, server_lr_max=theta, curvature_rate=rate)
    saddle = game.saddle
    duals = {name: {"dual": -each.field(saddle)} for name, each in zip(game.names, game.clients, strict=True)}
    after, _ = InProcess(game.problem(), algorithm, 1).run_round(
        FederatedState(0, algorithm.init_server(saddle), duals)
    )
    torch.testing.assert_close(after.z, saddle, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("theta", [1.75, 10.0])
@pytest.mark.parametrize("steps", [20, [5, 20, 35]], ids=["alike", "unlike"])
def test_it_reaches_the_saddle_and_its_duals_become_minus_the_clients_fields(
    steps: int | list[int], theta: float
) -> None:
    game = golden_game() if isinstance(steps, int) else random_game(3)
    state = game.play(AdaptiveFedMM(local_steps=steps, server_lr_max=theta), 1500)
    assert game.error(state) < 1e-9
    for name, client in zip(game.names, game.clients, strict=True):
        torch.testing.assert_close(state.clients[name]["dual"], -client.field(game.saddle), rtol=0, atol=1e-7)


def test_the_server_alone_keeps_what_it_measures() -> None:
    algorithm = AdaptiveFedMM()
    server = algorithm.init_server(torch.zeros(3))
    assert set(server) == STATE
    assert set(algorithm.broadcast(server)) == {"z"}


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_a_bad_rate_is_refused_by_name(rate: float) -> None:
    with pytest.raises(FedmmError, match="curvature_rate"):
        AdaptiveFedMM(curvature_rate=rate)
