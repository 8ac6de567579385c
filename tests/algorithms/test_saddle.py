"""Where the algorithms end: the numbers of the notes on the paper, measured on the recorded game.

Three heterogeneous clients, exact gradients, M = 20, eta = 0.01, mu = 1, 400 rounds.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from problems import Game, games, golden_game, played

from fedmm import FedAvgGDA, FedMM, FedProxGDA, FedSGDA, ScaffoldGDA
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState
from fedmm.engines.in_process import InProcess

ROUNDS = 400


@pytest.fixture(scope="module")
def game() -> Game:
    return golden_game()


@pytest.fixture(scope="module")
def fedmm_state(game: Game) -> FederatedState:
    return game.play(FedMM(), ROUNDS)


def test_fedmm_reaches_the_saddle(game: Game, fedmm_state: FederatedState) -> None:
    assert game.error(fedmm_state) < 1e-10


def test_fedmms_mean_dual_vanishes(fedmm_state: FederatedState) -> None:
    # z_0 = mean(z_i + dual_i / mu) can only stay where z_i = z_0 if the mean dual is 0.
    mean_dual = torch.stack([client["dual"] for client in fedmm_state.clients.values()]).mean(0)
    assert float(mean_dual.norm()) < 1e-10


def test_fedmms_duals_become_minus_the_clients_fields_at_the_saddle(game: Game, fedmm_state: FederatedState) -> None:
    # A local step stays at z* when F_i(z*) + mu (z* - z*) + dual_i = 0.
    for name, client in zip(game.names, game.clients, strict=True):
        field = client.field(game.saddle)
        assert float(field.norm()) > 1  # the clients disagree: the duals have something to do
        torch.testing.assert_close(fedmm_state.clients[name]["dual"], -field, rtol=0, atol=1e-10)


def test_scaffold_reaches_the_saddle(game: Game) -> None:
    assert game.error(game.play(ScaffoldGDA(), ROUNDS)) < 1e-10


def halfway_and_at_the_end(game: Game, algorithm: Algorithm) -> list[FederatedState]:
    states = [state for state, _ in played(InProcess(game.problem(), algorithm, ROUNDS), ROUNDS)]
    return [states[ROUNDS // 2 - 1], states[-1]]


@pytest.mark.parametrize("algorithm", [FedAvgGDA(), FedProxGDA()], ids=lambda a: a.name)
def test_local_steps_without_duals_stay_eleven_percent_away_for_ever(game: Game, algorithm: FedAvgGDA) -> None:
    half, whole = halfway_and_at_the_end(game, algorithm)
    assert game.error(whole) == pytest.approx(0.11, abs=0.01)
    assert float((whole.z - half.z).norm()) < 1e-10


def test_fedsgda_is_at_three_thousandths_and_falling(game: Game) -> None:
    half, whole = halfway_and_at_the_end(game, FedSGDA())
    assert game.error(whole) == pytest.approx(3e-3, rel=0.5)
    assert game.error(whole) < game.error(half) / 10


@pytest.mark.parametrize(("eta3", "error"), [(0.95, 1e-4), (0.9, 5e-3), (0.5, 0.17)])
def test_a_dual_decay_below_one_leaves_an_error(game: Game, eta3: float, error: float) -> None:
    state = game.play(FedMM(dual_decay=eta3), ROUNDS)
    assert error / 2 < game.error(state) < error * 2


@given(games)
@settings(max_examples=8)
def test_fedmm_reaches_the_saddle_of_random_games(game: Game) -> None:
    # Rates 0.05 and 10 steps take each client most of the way to its local saddle; 150 rounds are ample.
    assert game.error(game.play(FedMM(0.05, 0.05, 2.0, 2.0, local_steps=10), 150)) < 1e-6
