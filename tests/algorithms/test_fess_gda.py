"""FESS-GDA: averaging of a smoothed function."""

from __future__ import annotations

import pytest
import torch
from problems import FLOAT64, Game, Quadratic, random_game

from fedmm import FESSGDA, FedAvgGDA


def test_with_one_step_it_is_powers_of_a_known_matrix() -> None:
    # About the saddle, F = A z and one client: z <- z - eta A z - eta p (z - s), s <- s + b (z - s), with p for omega
    # alone.
    game = random_game(1, clients=1)
    A, size, split, eta, b = game.clients[0].matrix, 5, 3, 0.05, 0.3
    p = torch.tensor([2.0] * split + [0.0] * (size - split), dtype=FLOAT64)
    eye, pull = torch.eye(size, dtype=FLOAT64), torch.diag(eta * p)
    to_z = torch.cat([eye - eta * A - pull, pull], 1)
    to_s = torch.cat([b * to_z[:, :size], b * pull + (1 - b) * eye], 1)
    rounds = 12
    both = torch.linalg.matrix_power(torch.cat([to_z, to_s]), rounds) @ torch.cat([-game.saddle, -game.saddle])
    state = game.play(FESSGDA(eta, eta, 1, smoothing_min=2.0, centre_rate=b), rounds)
    torch.testing.assert_close(state.z - game.saddle, both[:size], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state.server["centre"] - game.saddle, both[size:], rtol=1e-10, atol=1e-12)


def test_the_pull_is_as_long_as_the_local_steps_together() -> None:
    # Fields of 0 and a centre at a distance of 1: the server goes server_lr K eta p towards it, K = (1 + 5) / 2.
    algorithm = FESSGDA(0.1, 0.2, [1, 5], server_lr=0.5, smoothing_min=2.0, smoothing_max=1.0)
    game = random_game(2, clients=2, sizes=(1, 1))
    c = algorithm.coefficients(game.layout, 0, 1)
    torch.testing.assert_close(c.pull, torch.tensor([0.5 * 3 * 0.1 * 2.0, 0.5 * 3 * 0.2 * 1.0], dtype=FLOAT64))


def test_its_saddle_is_fedavg_gdas_point() -> None:
    # At rest the centre is where the server is, so that the pull is gone.
    game = random_game(3)
    smoothed = game.play(FESSGDA(0.05, 0.05, 3, smoothing_min=1.0, centre_rate=0.5), 400)
    plain = game.play(FedAvgGDA(0.05, 0.05, 3), 400)
    torch.testing.assert_close(smoothed.z, plain.z, rtol=0, atol=1e-9)


def test_without_smoothing_it_is_fedavg_gda() -> None:
    game = random_game(4)
    rates = {"lr_min": 0.05, "lr_max": 0.1, "local_steps": 3, "server_lr": 0.7}
    assert torch.equal(game.play(FESSGDA(**rates, smoothing_min=0.0), 10).z, game.play(FedAvgGDA(**rates), 10).z)


def test_it_reaches_a_saddle_that_is_not_convex_in_omega_and_averaging_leaves_it() -> None:
    # f = -0.05 x^2 + x y - 0.075 y^2 - x + y. A descent-ascent step of 0.1 multiplies the distance by
    # sqrt(det [[1.01, -0.1], [0.1, 0.985]]) = 1.0024.
    def number(value: float) -> torch.Tensor:
        return torch.tensor([[value]], dtype=FLOAT64)

    game = Game([Quadratic(number(-0.1), number(1.0), number(0.15), number(-1.0)[0], number(-1.0)[0])])
    assert game.error(game.play(FedAvgGDA(0.1, 0.1, 1), 1000)) == pytest.approx(1.00485**500, rel=0.5)
    assert game.error(game.play(FESSGDA(0.1, 0.1, 1, smoothing_min=2.0, centre_rate=0.05), 3000)) < 1e-6
