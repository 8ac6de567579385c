"""Inexact proximal steps: extragradient with two batches, and on linear games the resolvent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from problems import FLOAT64, Game, Quadratic, random_game
from torch import Tensor

import fedmm
from fedmm import FedAvgGDA, FedmmError, FedProxGDA, ProximalPoint


def rotating(a: float, c: float) -> Quadratic:
    """x y + a x - c y: the field is (y + a, -x + c), and turns around the saddle (c, -a)."""
    zero, one = torch.zeros(1, 1, dtype=FLOAT64), torch.ones(1, 1, dtype=FLOAT64)
    return Quadratic(zero, one, zero, torch.tensor([a], dtype=FLOAT64), torch.tensor([c], dtype=FLOAT64))


def moved(q: Quadratic, z: Tensor, eta: float, anchors: Sequence[int]) -> Tensor:
    """Where a client comes from z with so many steps from each anchor."""
    for steps in anchors:
        anchor = z
        for _ in range(steps):
            z = anchor - eta * q.field(z)
    return z


def test_with_two_inner_steps_it_is_extragradient_with_a_fresh_batch_for_each_field() -> None:
    # f = b x y with batches b = 1, 2, 3, 4 in turn: look with the first, step with the second, from where it stood.
    batches = [torch.tensor(b, dtype=FLOAT64) for b in (1.0, 2.0, 3.0, 4.0)]
    start = (torch.ones((), dtype=FLOAT64), torch.ones((), dtype=FLOAT64))
    algorithm = ProximalPoint(0.1, 0.2, 4, inner_steps=2)
    found = fedmm.solve([(lambda x, y, b: b * x * y, lambda: batches)], start, algorithm, 2)
    x = y = 1.0
    for first, second in [(1.0, 2.0), (3.0, 4.0)] * 2:
        ahead = (x - 0.1 * first * y, y + 0.2 * first * x)
        x, y = x - 0.1 * second * ahead[1], y + 0.2 * second * ahead[0]
    assert (float(found.omega), float(found.psi)) == pytest.approx((x, y), rel=1e-12)


def test_with_many_inner_steps_it_is_the_resolvent_of_a_linear_field() -> None:
    # w = a - eta (A w + k) is w = (I + eta A)^-1 (a - eta k), and the inner steps approach it by the norm of eta A.
    game = random_game(3, clients=1)
    q, eta, moves = game.clients[0], 0.1, 3
    eye = torch.eye(5, dtype=FLOAT64)
    assert float(torch.linalg.matrix_norm(eta * q.matrix, ord=2)) ** 60 < 1e-14
    state = game.play(ProximalPoint(eta, eta, 60 * moves, inner_steps=60), 1)
    expected = torch.cat(game.start)
    for _ in range(moves):
        expected = torch.linalg.solve(eye + eta * q.matrix, expected - eta * q.offset)
    torch.testing.assert_close(state.z, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("inner_steps", [2, 3, 4])
def test_it_approaches_the_saddle_of_x_y_at_its_known_rate_and_plain_steps_leave_it(inner_steps: int) -> None:
    # About the saddle, K steps from a with F = A z lead to sum_{k <= K} (-eta A)^k a = (I - (-eta A)^{K+1})
    # (I + eta A)^-1 a, where A has the eigenvalues +-i: a factor |1 - (-i eta)^{K+1}| / sqrt(1 + eta^2) for every
    # anchor. The exact implicit step has 1 / sqrt(1 + eta^2), a plain one sqrt(1 + eta^2). Clients differ in their
    # saddles alone, so that the mean has the mean's.
    game = Game([rotating(1.0, 2.0), rotating(-3.0, 0.0)])
    eta, moves, rounds = 0.3, 2, 6
    a_move = abs(1 - (-1j * eta) ** (inner_steps + 1)) / (1 + eta**2) ** 0.5
    rates = {"lr_min": eta, "lr_max": eta, "local_steps": moves * inner_steps}
    ours = game.error(game.play(ProximalPoint(**rates, inner_steps=inner_steps), rounds))
    assert ours == pytest.approx(a_move ** (moves * rounds), rel=1e-9)
    plain = game.error(game.play(FedAvgGDA(**rates), rounds))
    assert plain == pytest.approx((1 + eta**2) ** (moves * inner_steps * rounds / 2), rel=1e-9)
    assert ours < 1 < plain


@pytest.mark.parametrize(("steps", "anchors"), [(1, [1]), (2, [2]), (3, [3]), (5, [5]), (6, [3, 3]), (11, [3, 3, 5])])
def test_the_last_anchor_of_a_round_takes_the_remainder(steps: int, anchors: list[int]) -> None:
    game, eta, rounds = random_game(4, clients=1), 0.05, 2
    z = moved(game.clients[0], torch.cat(game.start), eta, anchors * rounds)
    state = game.play(ProximalPoint(eta, eta, steps, inner_steps=3), rounds)
    torch.testing.assert_close(state.z, z, rtol=1e-12, atol=1e-13)
    assert all(own == {} for own in state.clients.values())


def test_with_one_anchor_a_round_it_is_fedprox_gda_whose_penalty_is_one_over_the_rate() -> None:
    game, rates = random_game(5), {"lr_min": 0.05, "lr_max": 0.1, "local_steps": [2, 4, 7]}
    one = game.play(ProximalPoint(**rates, inner_steps=7), 5)
    other = game.play(FedProxGDA(**rates, penalty_min=20.0, penalty_max=10.0), 5)
    torch.testing.assert_close(one.z, other.z, rtol=1e-12, atol=1e-13)


def test_different_clients_pull_it_to_the_fixed_point_of_their_mean_map() -> None:
    # Inner steps without end: client i maps z to R_i z + (I - R_i) s_i with its resolvent R_i and its own saddle s_i.
    game, eta = random_game(3), 0.1
    eye = torch.eye(5, dtype=FLOAT64)
    pulls = [eye - torch.linalg.inv(eye + eta * q.matrix) for q in game.clients]
    saddles = [torch.linalg.solve(q.matrix, -q.offset) for q in game.clients]
    fixed = torch.linalg.solve(sum(pulls), sum(p @ s for p, s in zip(pulls, saddles, strict=True)))
    state = game.play(ProximalPoint(eta, eta, 60, inner_steps=60), 300)
    torch.testing.assert_close(state.z, fixed, rtol=0, atol=1e-10)
    assert float((fixed - game.saddle).norm()) > 1e-3


def test_normalised_updates_count_by_their_anchors() -> None:
    game, eta, rounds = random_game(1), 0.02, 4
    algorithm = ProximalPoint(eta, eta, [2, 5, 12], inner_steps=4, normalize_steps=True)
    anchors = [[2], [5], [4, 4, 4]]
    z, mean = torch.cat(game.start), 5 / 3
    for _ in range(rounds):
        each = [(moved(q, z, eta, own) - z) / len(own) for q, own in zip(game.clients, anchors, strict=True)]
        z = z + mean * torch.stack(each).mean(0)
    torch.testing.assert_close(game.play(algorithm, rounds).z, z, rtol=1e-11, atol=1e-12)


def test_anchors_lie_in_the_constraints() -> None:
    # x in [0.5, 1] with the field 1: the first step from 1 leads to 0.4 and is held at 0.5, where the next ones stay.
    start = (torch.ones((), dtype=FLOAT64), torch.zeros((), dtype=FLOAT64))
    algorithm = ProximalPoint(0.6, 0.6, 4, inner_steps=2)
    found = fedmm.solve([lambda x, y: x + 0.0 * y], start, algorithm, 1, constraints={"omega": fedmm.Box(0.5, 1.0)})
    assert float(found.omega) == 0.5


def test_one_anchor_tells_the_last_field_alone() -> None:
    game, eta = random_game(2, clients=1), 0.05
    q, algorithm = game.clients[0], ProximalPoint(eta, eta, 7, inner_steps=4)
    z = game.play(algorithm, 1).z
    before = moved(q, torch.cat(game.start), eta, [6])
    torch.testing.assert_close((torch.cat(game.start) - z) / eta, q.field(before), rtol=1e-12, atol=1e-13)
    assert [algorithm.steps_told(steps) for steps in (1, 4, 7, 8, 12)] == [1, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "said"), [(1, "inner_steps must be at least 2"), (2.5, "inner_steps must be a whole number")]
)
def test_fewer_than_two_inner_steps_are_refused(given: float, said: str) -> None:
    with pytest.raises(FedmmError, match=said):
        ProximalPoint(inner_steps=given)  # type: ignore[arg-type]
