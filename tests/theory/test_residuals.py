"""What is measured along a run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from problems import golden_game, random_game
from torch import Tensor

import fedmm
from fedmm import ALGORITHMS, FedAvgGDA, FedMM, FedProxGDA
from fedmm.core.errors import FedmmError
from fedmm.theory import Phi, observe
from fedmm.theory.spectra import Derivatives, Function

FLOAT64 = torch.float64
Start = tuple[Tensor, Tensor]


WEIGHING = [name for name, kind in ALGORITHMS.items() if kind.weighs_clients]


@pytest.mark.parametrize("name", WEIGHING)
def test_a_method_that_weighs_clients_has_no_residuals_of_their_mean(
    name: str, robust: list[Function], origin: Start
) -> None:
    with pytest.raises(fedmm.FedmmError, match=f"the mean of the clients' functions, and {name} weights them"):
        observe(robust, origin, ALGORITHMS[name](), 1)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in WEIGHING])
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


def differences(of: object, at: Tensor, step: float = 1e-5) -> Tensor:
    units = step * torch.eye(len(at), dtype=at.dtype)
    return torch.tensor([(of(at + unit) - of(at - unit)) / (2 * step) for unit in units], dtype=at.dtype)  # type: ignore[operator]


def test_phi_of_a_quadratic_game_is_the_closed_form() -> None:
    game = random_game(5)
    A, B, C, a, c = (torch.stack([getattr(q, name) for q in game.clients]).mean(0) for name in "ABCac")
    x = torch.tensor([0.3, -1.0, 2.0], dtype=FLOAT64)
    best = torch.linalg.solve(C, B.T @ x - c)

    found = Phi(game.clients, game.start)(x)

    torch.testing.assert_close(found.psi, best, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.gradient, A @ x + B @ best + a, rtol=1e-10, atol=1e-10)
    assert found.value == pytest.approx(float(0.5 * x @ A @ x + a @ x + 0.5 * best @ C @ best), rel=1e-10)


def test_the_gradient_is_that_of_finite_differences(robust: list[Function], origin: tuple[Tensor, Tensor]) -> None:
    phi = Phi(robust, origin)
    for omega in ([0.0, 0.0], [1.0, -2.0], [-3.0, 0.5]):
        at = torch.tensor(omega, dtype=FLOAT64)
        torch.testing.assert_close(phi(at).gradient, differences(lambda w: phi(w).value, at), rtol=1e-6, atol=1e-6)


def test_it_is_found_where_newtons_full_step_would_fail() -> None:
    # f = w p - log cosh(3 p) - p^2 / 50: from far out, where f is nearly linear, Newton's full step overshoots by far
    def f(w: Tensor, p: Tensor) -> Tensor:
        return (w * p - torch.log(torch.cosh(3 * p)) - p**2 / 50).sum()

    phi = Phi([f], (torch.zeros(1, dtype=FLOAT64), torch.full((1,), 5.0, dtype=FLOAT64)))
    found = phi(torch.tensor([1.0], dtype=FLOAT64))
    assert float(1.0 - 3 * torch.tanh(3 * found.psi) - found.psi / 25) == pytest.approx(0.0, abs=1e-9)


def test_a_single_client_at_the_means_maximum_has_another_gradient(
    robust: list[Function], origin: tuple[Tensor, Tensor]
) -> None:
    # The paper takes d Phi_i = d_omega f_i(omega, psi*(omega)). With psi* the mean's, (d psi*)' d_psi f_i is missing,
    # which vanishes in the mean over the clients alone.
    phi = Phi(robust, origin)
    at = torch.tensor([1.0, -1.0], dtype=FLOAT64)
    missing = []
    for f in robust:
        true = differences(lambda w, f=f: float(f(w, phi(w).psi)), at)
        partial = Derivatives(f, phi.layout, torch.cat([at, phi(at).psi])).side("omega")
        missing.append(true - partial)
    assert max(float(each.norm()) for each in missing) > 0.3
    assert float(torch.stack(missing).mean(0).norm()) < 1e-6


def test_a_game_that_is_not_concave_is_refused(origin: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(FedmmError, match="not strongly concave in psi"):
        Phi([lambda w, p: w @ p + p @ p], origin)(torch.ones(2, dtype=FLOAT64))
