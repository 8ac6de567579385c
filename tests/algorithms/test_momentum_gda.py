"""Momentum Local SGDA: a linear recursion on linear games."""

from __future__ import annotations

import pytest
import torch
from problems import FLOAT64, random_game

from fedmm import FedAvgGDA, FedmmError, MomentumGDA


def test_one_clients_steps_are_powers_of_a_known_matrix() -> None:
    # About its saddle, F = A z: d <- m d + (1 - m) A z, z <- z - eta d, so that (z, d) is multiplied with
    # [[I - eta (1 - m) A, -eta m I], [(1 - m) A, m I]] in every step after the first, where d = A z.
    game = random_game(1, clients=1)
    A, size, eta, m = game.clients[0].matrix, 5, 0.05, 0.7
    eye = torch.eye(size, dtype=FLOAT64)
    step = torch.cat([torch.cat([eye - eta * (1 - m) * A, -eta * m * eye], 1), torch.cat([(1 - m) * A, m * eye], 1)])
    z = -game.saddle
    both = torch.cat([z - eta * A @ z, A @ z])
    rounds, steps = 6, 3
    state = game.play(MomentumGDA(eta, eta, steps, momentum=m), rounds)
    both = torch.linalg.matrix_power(step, rounds * steps - 1) @ both
    torch.testing.assert_close(state.z - game.saddle, both[:size], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state.server["direction"], both[size:], rtol=1e-10, atol=1e-12)
    # and its rate is the largest modulus among that matrix's eigenvalues, below 1 here
    assert float(torch.linalg.eigvals(step).abs().max()) < 1
    assert game.error(game.play(MomentumGDA(eta, eta, steps, momentum=m), 300)) < 1e-10


def test_points_and_directions_are_averaged() -> None:
    game = random_game(2)
    eta, m, rounds, steps = 0.05, 0.7, 5, 3
    z, d = torch.cat(game.start), None
    for _ in range(rounds):
        ends = []
        for client in game.clients:
            own, along = z, d
            for _ in range(steps):
                field = client.field(own)
                along = field if along is None else m * along + (1 - m) * field
                own = own - eta * along
            ends.append((own, along))
        z, d = (torch.stack(list(each)).mean(0) for each in zip(*ends, strict=True))
    state = game.play(MomentumGDA(eta, eta, steps, momentum=m), rounds)
    torch.testing.assert_close(state.z, z, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state.server["direction"], d, rtol=1e-11, atol=1e-12)
    assert all(own == {} for own in state.clients.values())


def test_without_momentum_it_is_fedavg_gda() -> None:
    game = random_game(3)
    without, plain = MomentumGDA(0.05, 0.1, 4, momentum=0.0), FedAvgGDA(0.05, 0.1, 4)
    torch.testing.assert_close(game.play(without, 10).z, game.play(plain, 10).z, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("momentum", "steps", "told"), [(0.0, 20, 1), (0.5, 2, 1), (0.5, 3, 2), (0.75, 20, 4), (0.99, 20, 1), (0.5, 1, 1)]
)
def test_no_step_has_a_larger_share_of_the_direction_than_it_says(momentum: float, steps: int, told: int) -> None:
    assert MomentumGDA(momentum=momentum).steps_told(steps) == told
    shares = [momentum ** (steps - 1), *((1 - momentum) * momentum**later for later in range(steps - 1))]
    assert sum(shares) == pytest.approx(1)
    assert max(shares) <= 1 / told


@pytest.mark.parametrize("momentum", [1.0, -0.1])
def test_a_momentum_that_forgets_nothing_or_less_is_refused(momentum: float) -> None:
    with pytest.raises(FedmmError, match="momentum must be at least 0 and below 1"):
        MomentumGDA(momentum=momentum)
