"""Phi and its gradient, beside closed forms and finite differences."""

from __future__ import annotations

import pytest
import torch
from problems import random_game
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.theory import Phi
from fedmm.theory.derivatives import Derivatives, Function

FLOAT64 = torch.float64


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
