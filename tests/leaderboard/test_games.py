"""The leaderboard's games have the fields of their formulas, and the saddles that they are measured by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedmm.leaderboard.auc import LabelSortedAuc, area, auc_fields
from fedmm.leaderboard.games import GaussianGan, QuadraticGame, RobustLeastSquares, affine_saddle, draw, gan_rows
from fedmm.leaderboard.play import ALL, Game

GAMES = {"quadratic": QuadraticGame(9), "robust": RobustLeastSquares(9), "auc": LabelSortedAuc(9, "digits")}


def signed(f: Callable[[Tensor, Tensor], Tensor], omega: Tensor, psi: Tensor) -> Tensor:
    """(df/d omega, -df/d psi) by automatic differentiation."""
    omega, psi = (part.detach().requires_grad_() for part in (omega, psi))
    down, up = torch.autograd.grad(f(omega, psi), (omega, psi))
    return torch.cat([down.flatten(), -up.flatten()])


def jacobian(game: Game, i: int) -> Tensor:
    """Of the field of client i of an affine game."""
    units = torch.eye(game.layout.size, dtype=game.layout.dtype)
    here = game.fields[i](0 * units[0], ALL)
    return torch.stack([game.fields[i](unit, ALL) - here for unit in units], dim=1)


def saddle_of(game: Game) -> Tensor:
    each = torch.stack([jacobian(game, i) for i in range(len(game.fields))])
    zero = torch.zeros(game.layout.size, dtype=game.layout.dtype)
    offsets = torch.stack([field(zero, ALL) for field in game.fields])
    return affine_saddle(each.unsqueeze(1), offsets.unsqueeze(1))


@pytest.mark.parametrize("problem", GAMES.values(), ids=list(GAMES))
def test_the_mean_field_of_an_affine_game_is_zero_at_its_saddle(problem: QuadraticGame) -> None:
    game = problem.build(3)
    saddle = saddle_of(game)
    assert float(game.mean_field(saddle).norm()) < 1e-9
    # A single client has another saddle: the clients are unlike.
    assert float(game.fields[0](saddle, ALL).norm()) > 0.1


@pytest.mark.parametrize("problem", [QuadraticGame(9), RobustLeastSquares(9)], ids=["quadratic", "robust"])
def test_the_distance_is_0_at_the_saddle_and_1_at_the_start(problem: QuadraticGame) -> None:
    game = problem.build(0)
    assert game.measure(saddle_of(game)) == pytest.approx(0.0, abs=1e-12)
    assert game.measure(game.layout.pack(*game.start)) == pytest.approx(1.0)


@pytest.mark.parametrize("kappa", [4.0, 50.0])
def test_a_quadratic_game_has_the_condition_number_and_the_spread_it_was_given(kappa: float) -> None:
    game = QuadraticGame(9, kappa, 0.0).build(1)
    own = jacobian(game, 0)
    eigenvalues = torch.linalg.eigvalsh((own + own.mT) / 2)
    assert float(eigenvalues.max() / eigenvalues.min()) == pytest.approx(kappa, rel=1e-6)
    point = draw("anywhere", shape=(game.layout.size,))
    torch.testing.assert_close(game.fields[0](point, ALL), game.fields[-1](point, ALL))  # the clients are one


def test_clients_of_a_heterogeneous_game_stay_convex_concave() -> None:
    game = QuadraticGame(9, 20.0, 10.0).build(0)
    for i in range(len(game.fields)):
        own = jacobian(game, i)
        torch.testing.assert_close(own[:10, 10:], -own[10:, :10].mT)
        assert float(torch.linalg.eigvalsh((own + own.mT) / 2).min()) > 0


def test_the_field_of_robust_least_squares_is_that_of_its_formula() -> None:
    game = RobustLeastSquares(9, penalty=3.0).build(0)
    own = jacobian(game, 2)
    A, b = own[10:, :10], -game.fields[2](torch.zeros(30, dtype=torch.float64), ALL)[10:]

    def f(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (A @ x - b - y).square().sum() - 1.5 * y.square().sum()

    z = draw("anywhere", shape=(30,))
    torch.testing.assert_close(game.fields[2](z, ALL), signed(f, z[:10], z[10:]))


def test_the_field_of_the_gan_is_that_of_its_formula_on_a_batch_and_on_all_rows() -> None:
    game = GaussianGan(9).build(2)
    points, noise = gan_rows(2, 256)
    z = draw("anywhere", shape=(12,))
    for batch, rows in ((1, slice(64, 128)), (ALL, slice(None))):

        def f(omega: Tensor, psi: Tensor, rows: slice = rows) -> Tensor:
            def critic(v: Tensor) -> Tensor:
                return (v @ psi[:, 0] + ((v @ psi[:, 1:]) * v).sum(dim=-1)).mean()

            made = omega[:, 0] + noise[3, rows] @ omega[:, 1:].mT
            return critic(points[3, rows]) - critic(made) - 0.5 * psi.square().sum()

        torch.testing.assert_close(game.fields[3](z, batch), signed(f, z[:6].view(2, 3), z[6:].view(2, 3)))


def test_the_gan_is_at_its_saddle_where_the_generator_has_the_pooled_mean_and_covariance() -> None:
    game = GaussianGan(9).build(2)
    points = gan_rows(2, 256)[0].reshape(-1, 2)
    root = torch.linalg.cholesky(torch.cov(points.T, correction=0))
    generator = torch.cat([points.mean(dim=0).unsqueeze(1), root], dim=1)
    saddle = torch.cat([generator.flatten(), torch.zeros(6, dtype=torch.float64)])
    assert float(game.mean_field(saddle).norm()) < 1e-12
    assert game.measure(saddle) < 1e-12
    assert game.measure(game.layout.pack(*game.start)) == 1.0


def test_the_field_of_the_auc_is_that_of_its_formula() -> None:
    x, positive = draw("x", shape=(2, 3, 8, 4)), draw("y", shape=(2, 3, 8)) > 0.5
    J, k = auc_fields(x, positive)
    p, z = float(positive.double().mean()), draw("anywhere", shape=(7,))
    rows, up = x[1, 2], positive[1, 2].double()

    def f(omega: Tensor, alpha: Tensor) -> Tensor:
        w, a, b = omega[:4], omega[4], omega[5]
        score = rows @ w
        near = (1 - p) * (score - a).square() * up + p * (score - b).square() * (1 - up)
        ranked = 2 * (1 + alpha) * score * (p * (1 - up) - (1 - p) * up)
        return (near + ranked).mean() - p * (1 - p) * alpha.square().sum() + 0.0005 * w.square().sum()

    torch.testing.assert_close(J[1, 2] @ z + k[1, 2], signed(f, z[:6], z[6:]))


def test_clients_hold_two_digits_each_and_the_saddle_ranks_the_test_rows() -> None:
    game = LabelSortedAuc(9, "digits").build(0)
    assert game.measure(saddle_of(game)) == pytest.approx(1.0)
    assert 0.5 <= game.measure(game.layout.pack(*game.start)) < 0.6  # an AUC of a half, over the saddle's
    # The first client holds no positive digit, so that a, of the positives alone, has no field there.
    z = draw("anywhere", shape=(67,))
    assert float(game.fields[0](z, ALL)[-3]) == 0.0
    assert float(game.fields[-1](z, ALL)[-2]) == 0.0


def test_the_area_under_the_curve_is_the_share_of_pairs_ranked_rightly() -> None:
    score, positive = torch.tensor([3.0, 1.0, 2.0, 2.0]), torch.tensor([True, False, True, False])
    assert area(score, positive) == (1 + 1 + 1 + 0.5) / 4


def test_a_client_takes_each_batch_once_an_epoch_in_another_order() -> None:
    client = GaussianGan(9).build(0).clients(seed=5)[0]
    epochs = [[client.batch(4 * epoch + step) for step in range(4)] for epoch in range(6)]
    assert all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1
    assert QuadraticGame(9).build(0).clients(seed=5)[0].batch(7) == ALL
