"""Optimistic FedMM: its duals are the last fields, and its server's step is optimistic."""

from __future__ import annotations

import pytest
import torch
from problems import FLOAT64, Game, Quadratic, played, random_game

from fedmm import FedMM, OptimisticFedMM
from fedmm.core.federation import Terms
from fedmm.engines.in_process import InProcess


def rotating(a: float, c: float) -> Quadratic:
    """x y + a x - c y."""
    zero, one = torch.zeros(1, 1, dtype=FLOAT64), torch.ones(1, 1, dtype=FLOAT64)
    return Quadratic(zero, one, zero, torch.tensor([a], dtype=FLOAT64), torch.tensor([c], dtype=FLOAT64))


def test_with_one_local_step_it_is_an_optimistic_step_to_the_digit() -> None:
    # One step: z_i - z_0 = -eta (F_i + dual_i) and a = mu eta, so that dual_i becomes -F_i(z_0), and
    # z_0 <- z_0 - theta eta (2 F(z_0) - F(z_0 before)), F before the first round 0.
    game = random_game(1)
    eta, theta, rounds = 0.05, 0.8, 10
    z, before = torch.cat(game.start), torch.zeros(5, dtype=FLOAT64)
    for _ in range(rounds):
        F = torch.stack([client.field(z) for client in game.clients]).mean(0)
        z, before = z - theta * eta * (2 * F - before), F
    state = game.play(OptimisticFedMM(eta, eta, 2.0, 2.0, local_steps=1, server_lr=theta), rounds)
    torch.testing.assert_close(state.z, z, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state.server["mean_dual"], -before, rtol=1e-10, atol=1e-11)


def test_it_reaches_the_saddle_of_different_clients_and_its_duals_their_fields_there() -> None:
    game = random_game(2)
    state = game.play(OptimisticFedMM(0.05, 0.05, 2.0, 2.0, local_steps=5), 400)
    assert game.error(state) < 1e-9
    for client, own in zip(game.clients, state.clients.values(), strict=True):
        torch.testing.assert_close(own["dual"], -client.field(game.saddle), rtol=0, atol=1e-7)


def test_it_is_stable_on_a_game_that_only_rotates_and_fedmm_is_not() -> None:
    game = Game([rotating(1.0, 2.0), rotating(-3.0, 0.0)])
    options = {"lr_min": 0.05, "lr_max": 0.05, "penalty_min": 2.0, "penalty_max": 2.0, "local_steps": 5}
    assert game.error(game.play(OptimisticFedMM(**options), 400)) < 1e-3
    assert game.error(game.play(FedMM(**options), 400)) > 1.0


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_servers_dual_is_the_mean_of_all(share: float) -> None:
    game = random_game(3, clients=4)
    algorithm = OptimisticFedMM(0.02, 0.02, 2.0, 2.0, local_steps=[1, 2, 3, 4], server_lr=0.3)
    *_, (state, _) = played(InProcess(game.problem(), algorithm, 60, Terms(participation=share)), 60)
    duals = torch.stack([own["dual"] for own in state.clients.values()])
    torch.testing.assert_close(state.server["mean_dual"], duals.mean(0), rtol=0, atol=1e-10)
