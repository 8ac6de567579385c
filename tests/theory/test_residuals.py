"""What is measured along a run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from problems import golden_game
from torch import Tensor

import fedmm
from fedmm import ALGORITHMS, FedAvgGDA, FedMM, FedProxGDA
from fedmm.core.errors import FedmmError
from fedmm.theory import observe
from fedmm.theory.derivatives import Function

FLOAT64 = torch.float64
Start = tuple[Tensor, Tensor]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_observed_run_is_the_same_run(name: str, robust: list[Function], origin: Start) -> None:
    algorithm = ALGORITHMS[name]()
    seen = observe(robust, origin, algorithm, 3, every=2)
    solved = fedmm.solve(robust, origin, algorithm, 3)
    assert [each.round for each in seen.rounds] == [2, 3]
    assert torch.equal(seen.rounds[-1].server, torch.cat([solved.omega, solved.psi]))  # type: ignore[list-item]
    assert all(torch.isfinite(each.e_omega + each.e_psi + each.epsilon).all() for each in seen.rounds)


def test_residuals_fall_with_more_local_steps(robust: list[Function], origin: Start) -> None:
    worst = []
    for steps in (2, 5, 10, 20):
        last = observe(robust, origin, FedMM(0.1, 0.1, 4.0, 4.0, local_steps=steps), 4).rounds[-1]
        worst.append(max(float(last.e_omega.max()), float(last.e_psi.max())))
    assert all(after < before / 3 for before, after in pairwise(worst))


def test_residuals_are_those_worked_out_from_the_definition() -> None:
    # d L_i = F_i(z_i) + mu (z_i - z_0) + dual_i, signed, in the first round with dual_i = 0 and z_0 = 0
    game = golden_game()
    split = game.sizes[0]
    seen = observe(game.clients, game.start, FedMM(0.01, 0.02, 0.5, 2.0, local_steps=3), 1).rounds[0]
    mu = torch.cat([torch.full((split,), 0.5), torch.full((game.sizes[1],), 2.0)]).to(FLOAT64)
    for number, quadratic in enumerate(game.clients):
        expected = quadratic.field(seen.points[number]) + mu * seen.points[number]
        assert float(seen.e_omega[number]) == pytest.approx(float(expected[:split].norm()), rel=1e-10)
        assert float(seen.e_psi[number]) == pytest.approx(float(expected[split:].norm()), rel=1e-10)
        B, C, c = (torch.stack([getattr(q, name) for q in game.clients]).mean(0) for name in "BCc")
        best = torch.linalg.solve(C, B.T @ seen.points[number][:split] - c)
        assert float(seen.epsilon[number]) == pytest.approx(
            float((seen.points[number][split:] - best).norm()), rel=1e-8
        )


def test_without_penalty_or_duals_the_residual_is_the_clients_own_gradient() -> None:
    game = golden_game()
    split = game.sizes[0]
    seen = observe(game.clients, game.start, FedAvgGDA(local_steps=3), 1).rounds[0]
    for number, quadratic in enumerate(game.clients):
        own = quadratic.field(seen.points[number])
        assert float(seen.e_omega[number]) == pytest.approx(float(own[:split].norm()), rel=1e-10)


def test_fedmm_reaches_a_stationary_point_and_averaging_does_not(robust: list[Function], origin: Start) -> None:
    rates = {"lr_min": 0.1, "lr_max": 0.1, "local_steps": 10}
    with_duals = observe(robust, origin, FedMM(**rates, penalty_min=2.0, penalty_max=2.0), 40, every=40)
    averaged = observe(robust, origin, FedAvgGDA(**rates), 40, every=40)
    held = observe(robust, origin, FedProxGDA(**rates, penalty_min=2.0, penalty_max=2.0), 40, every=40)
    assert with_duals.gradient_norms[-1] < 1e-3
    assert min(averaged.gradient_norms[-1], held.gradient_norms[-1]) > 1e-2


def test_a_run_that_diverges_says_so(robust: list[Function], origin: Start) -> None:
    seen = observe(robust, origin, FedMM(3.0, 3.0, 2.0, 2.0, local_steps=10), 100)
    assert seen.diverged
    assert len(seen.rounds) < 100


def test_the_path_is_in_the_form_of_the_start() -> None:
    def f(omega: dict[str, Tensor], psi: Tensor) -> Tensor:
        return omega["w"] @ omega["w"] + omega["w"] @ psi - psi @ psi + psi.sum()

    start = ({"w": torch.ones(2, dtype=FLOAT64)}, torch.zeros(2, dtype=FLOAT64))
    seen = observe([f], start, FedMM(), 2)  # type: ignore[list-item]
    assert [sorted(omega) for omega, _ in seen.path] == [["w"], ["w"]]
    assert seen.start.value == pytest.approx(2.0 + 2.0)  # psi* = (w + 1) / 2 and Phi = w'w + |w + 1|^2 / 4


def test_what_cannot_be_is_refused(origin: Start) -> None:
    with pytest.raises(FedmmError, match="at least one client's function"):
        observe([], origin, FedMM(), 1)
    with pytest.raises(FedmmError, match="0-dim tensor"):
        observe([lambda w, p: w * p], origin, FedMM(), 1)
