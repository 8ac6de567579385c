"""Extragradient on games whose steps are known matrices."""

from __future__ import annotations

import pytest
import torch
from problems import FLOAT64, Game, Quadratic, played, random_game

import fedmm
from fedmm import Extragradient, FedAvgGDA
from fedmm.engines.in_process import InProcess


def rotating(a: float, c: float) -> Quadratic:
    """x y + a x - c y: the field is (y + a, -x + c), and turns around the saddle (c, -a)."""
    zero, one = torch.zeros(1, 1, dtype=FLOAT64), torch.ones(1, 1, dtype=FLOAT64)
    return Quadratic(zero, one, zero, torch.tensor([a], dtype=FLOAT64), torch.tensor([c], dtype=FLOAT64))


def test_it_approaches_the_saddle_of_x_y_at_its_known_rate_and_plain_steps_leave_it() -> None:
    # z - eta A (z - eta A z) = (I - eta A + eta^2 A^2) z with eigenvalues 1 - eta^2 +- i eta, of modulus
    # sqrt((1 - eta^2)^2 + eta^2); a plain step has 1 +- i eta. Clients differ in their saddles alone, so that the mean
    # has the mean's.
    game = Game([rotating(1.0, 2.0), rotating(-3.0, 0.0)])
    eta, steps, rounds = 0.2, 4, 10
    rates = {"lr_min": eta, "lr_max": eta, "local_steps": steps}
    factors = {Extragradient: (1 - eta**2 + eta**4) ** 0.5, FedAvgGDA: (1 + eta**2) ** 0.5}
    for kind, factor in factors.items():
        *_, (state, _) = played(InProcess(game.problem(), kind(**rates), rounds), rounds)
        expected = factor ** (steps * rounds)
        assert float((state.z - game.saddle).norm() / game.saddle.norm()) == pytest.approx(expected, rel=1e-9)


def test_different_clients_pull_it_to_the_fixed_point_of_their_mean_map() -> None:
    # One client's M steps are z -> P_i^M z + (I - P_i^M) s_i with its own saddle s_i, P_i = I - eta A_i + eta^2 A_i^2.
    game = random_game(3)
    eta, steps = 0.05, 3
    powers, saddles = [], []
    for q in game.clients:
        eye = torch.eye(5, dtype=FLOAT64)
        powers.append(torch.linalg.matrix_power(eye - eta * q.matrix + eta**2 * q.matrix @ q.matrix, steps))
        saddles.append(torch.linalg.solve(q.matrix, -q.offset))
    pulls = [eye - power for power in powers]
    fixed = torch.linalg.solve(sum(pulls), sum(p @ s for p, s in zip(pulls, saddles, strict=True)))
    state = game.play(Extragradient(eta, eta, steps), 200)
    torch.testing.assert_close(state.z, fixed, rtol=0, atol=1e-10)
    assert float((fixed - game.saddle).norm()) > 1e-3


def test_both_fields_of_a_step_are_of_one_batch() -> None:
    # f = b x y with batches b = 1, 2, 3, ... in turn: the second field of a step must be of the same b as the first.
    batches = [torch.tensor(b, dtype=FLOAT64) for b in (1.0, 2.0, 3.0, 4.0)]
    start = (torch.ones((), dtype=FLOAT64), torch.ones((), dtype=FLOAT64))
    found = fedmm.solve([(lambda x, y, b: b * x * y, lambda: batches)], start, Extragradient(0.1, 0.1, 2), 2)
    x = y = 1.0
    values = []
    for b in (1.0, 2.0, 3.0, 4.0):
        values.append(b * x * y)
        ahead = (x - 0.1 * b * y, y + 0.1 * b * x)
        x, y = x - 0.1 * b * ahead[1], y + 0.1 * b * ahead[0]
    assert (float(found.omega), float(found.psi)) == pytest.approx((x, y), rel=1e-12)
    # Reported is f where the steps begin, not where they look.
    assert [row["loss"] for row in found.history] == pytest.approx([sum(values[:2]) / 2, sum(values[2:]) / 2])
