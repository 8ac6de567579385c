"""FedSGDA-M: STORM's estimate, step by step and across rounds."""

from __future__ import annotations

import pytest
import torch
from problems import FLOAT64, random_game

import fedmm
from fedmm import FedAvgGDA, FedmmError, FedSGDAM
from fedmm.core.schedules import DannDecay


def test_with_exact_fields_one_clients_estimate_is_its_field() -> None:
    # u = F(z) + m (F(z') - F(z')) by induction: the trajectory of descent-ascent, whatever the momentum.
    game = random_game(1, clients=1)
    storm, plain = FedSGDAM(0.05, 0.1, 4, momentum=0.8), FedAvgGDA(0.05, 0.1, 4)
    torch.testing.assert_close(game.play(storm, 10).z, game.play(plain, 10).z, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("schedule", [fedmm.Constant(), DannDecay()])
def test_on_batches_it_is_storm_whatever_the_length_of_a_round(schedule: fedmm.DannDecay) -> None:
    # f = 1/2 (b_1 x^2 - b_2 y^2) + x y, batches in turn. One round of six steps, or six of one, is the same STORM as
    # long as the rate is.
    batches = [torch.tensor(pair, dtype=FLOAT64) for pair in ((1.0, 2.0), (3.0, 1.0), (0.5, 0.5))]
    start = (torch.ones((), dtype=FLOAT64), -torch.ones((), dtype=FLOAT64))
    m, steps, rounds = 0.7, 2, 3

    def function(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 0.5 * (b[0] * x * x - b[1] * y * y) + x * y

    algorithm = FedSGDAM(0.1, 0.2, steps, momentum=m, lr_schedule=schedule)
    found = fedmm.solve([(function, lambda: batches)], start, algorithm, rounds)

    def field(z: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([b[0] * z[0] + z[1], b[1] * z[1] - z[0]])

    z, before, u = torch.stack(start), None, None
    for step in range(steps * rounds):
        eta = torch.tensor([0.1, 0.2], dtype=FLOAT64) * schedule(step // steps, rounds)
        b = batches[step % 3]
        u = field(z, b) if u is None else field(z, b) + m * (u - field(before, b))
        before, z = z, z - eta * u
    torch.testing.assert_close(torch.stack([found.omega, found.psi]), z, rtol=1e-11, atol=1e-12)


def test_the_first_point_before_a_round_is_the_mean_of_the_clients_points_before_their_last_steps() -> None:
    game = random_game(2)
    eta, m, steps, rounds = 0.05, 0.7, 3, 4
    z, before, u = torch.cat(game.start), None, None
    for _ in range(rounds):
        ends = []
        for client in game.clients:
            own, last, along = z, before, u
            for _ in range(steps):
                field = client.field(own)
                along = field if along is None else field + m * (along - client.field(last))
                last, own = own, own - eta * along
            ends.append((own, last, along))
        z, before, u = (torch.stack(list(each)).mean(0) for each in zip(*ends, strict=True))
    state = game.play(FedSGDAM(eta, eta, steps, momentum=m), rounds)
    torch.testing.assert_close(state.z, z, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state.server["estimate"], u, rtol=1e-10, atol=1e-11)


def test_its_estimate_has_less_noise_than_a_batch() -> None:
    # f = 1/2 x^2 - 1/2 y^2 + b (x + y) with noise b of mean 0, the same at every point: u is the exact field and
    # (1 - m) times the sum of m^s b, whose variance is (1 - m) / (1 + m) of a batch's, about 1/40 here.
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=FLOAT64)
    start = (torch.zeros((), dtype=FLOAT64), torch.zeros((), dtype=FLOAT64))

    def spread(algorithm: fedmm.Algorithm) -> float:
        ends = []
        for run in range(20):
            own = list(noise[200 * run : 200 * (run + 1)])
            found = fedmm.solve(
                [(lambda x, y, b: 0.5 * (x * x - y * y) + b * (x + y), lambda own=own: own)], start, algorithm, 10
            )
            ends.append(found.omega)
        return float(torch.stack(ends).square().mean().sqrt())

    assert spread(FedSGDAM(0.3, 0.3, 20, momentum=0.95)) < 0.5 * spread(FedAvgGDA(0.3, 0.3, 20))


@pytest.mark.parametrize("momentum", [1.0, -0.1])
def test_a_momentum_that_forgets_nothing_or_less_is_refused(momentum: float) -> None:
    with pytest.raises(FedmmError, match="momentum must be at least 0 and below 1"):
        FedSGDAM(momentum=momentum)
