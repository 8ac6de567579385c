"""The theorem's constants of problems whose constants are known."""

from __future__ import annotations

import pytest
import torch
from problems import Game, golden_game, random_game
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.core.layout import Point
from fedmm.theory import Constants, around, estimate_constants
from fedmm.theory.spectra import Function

FLOAT64 = torch.float64


def norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


@pytest.mark.parametrize("game", [golden_game(), random_game(3), random_game(4, clients=2, sizes=(5, 4))])
def test_the_constants_of_a_quadratic_game_are_exact(game: Game) -> None:
    found = estimate_constants(game.clients, [game.start])

    A, B, C = (torch.stack([getattr(q, name) for q in game.clients]) for name in "ABC")
    L12, least = max(norm(b) for b in B), min(float(torch.linalg.eigvalsh(c)[0]) for c in C)
    expected = Constants.of(
        L11=max(norm(a) for a in A), L12=L12, L22=max(norm(c) for c in C), B=least, N=len(game.clients)
    )
    for name, value in vars(expected).items():
        assert getattr(found.bounds, name) == pytest.approx(value, rel=1e-10), name

    response = torch.linalg.solve(C.mean(0), B.mean(0).T)  # psi*(x) = C^-1 (B'x - c)
    assert found.measured.kappa == pytest.approx(norm(response), rel=1e-10)
    assert found.measured.L_Phi == pytest.approx(
        max(norm(a + b @ response) for a, b in zip(A, B, strict=True)), rel=1e-10
    )
    assert found.measured.kappa <= found.bounds.kappa
    assert found.measured.L_Phi <= found.bounds.L_Phi


def test_the_estimates_rise_to_the_constants_as_more_points_are_looked_at() -> None:
    # f = sin(3 w) + 2 w p - p^2 - p^4 / 12: L11 = 9, L12 = 2, -f_pp = 2 + p^2, so that B = 2; L22 = 18 if |p| <= 4
    def f(w: Tensor, p: Tensor) -> Tensor:
        return (torch.sin(3 * w) + 2 * w * p - p**2 - p**4 / 12).sum()

    start = (torch.ones(1, dtype=FLOAT64), torch.ones(1, dtype=FLOAT64))
    few = estimate_constants([f], around(start, 3.0, 5)).bounds
    many = estimate_constants([f], around(start, 3.0, 50)).bounds
    assert few.L11 <= many.L11 <= 9.0
    assert few.L22 <= many.L22 <= 18.0
    assert few.B >= many.B >= 2.0
    assert pytest.approx(9.0, rel=0.05) == many.L11
    assert pytest.approx(2.0, rel=0.05) == many.B
    assert pytest.approx(2.0) == many.L12


def test_the_robust_game_stays_within_its_closed_bounds(robust: list[Function], origin: tuple[Tensor, Tensor]) -> None:
    found = estimate_constants(robust, around(origin, 3.0, 8)).bounds
    assert pytest.approx(1.0) == found.B
    assert pytest.approx(1.0) == found.L22
    assert found.L21 == found.L12
    assert found.N == 3


def test_points_may_be_named_tensors() -> None:
    def f(omega: dict[str, Tensor], psi: dict[str, Tensor]) -> Tensor:
        w = torch.cat([omega["a"].reshape(-1), omega["b"]])
        return 3 * w @ w + w[:2] @ psi["p"] - 2 * psi["p"] @ psi["p"]

    omega: Point = {"a": torch.zeros(1, 2, dtype=FLOAT64), "b": torch.zeros(1, dtype=FLOAT64)}
    found = estimate_constants([f], [(omega, {"p": torch.zeros(2, dtype=FLOAT64)})]).bounds  # type: ignore[list-item]
    assert pytest.approx((6.0, 1.0, 4.0, 4.0)) == (found.L11, found.L12, found.L22, found.B)


def test_points_around_a_start_stay_in_the_ball(origin: tuple[Tensor, Tensor]) -> None:
    points = around(origin, 2.0, 50)
    lengths = [float(torch.cat(point).norm()) for point in points]  # type: ignore[arg-type]
    assert len(points) == 51
    assert lengths[0] == 0
    assert 1.0 < max(lengths) <= 2.0


def test_a_client_that_is_not_strongly_concave_is_named(origin: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(FedmmError, match="client 2 is not strongly concave in psi"):
        estimate_constants([lambda w, p: (w * p - p**2).sum(), lambda w, p: (w * p).sum() + w @ w], [origin])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"B": 0.0}, "B must be above 0"),
        ({"L22": 0.5}, "L22 = 0.5 must be at least B = 1"),
        ({"N": 0}, "N must be at least 1"),
    ],
)
def test_constants_that_cannot_be_are_refused(change: dict[str, float], sentence: str) -> None:
    usual = {"L11": 1.0, "L12": 1.0, "L21": 1.0, "L22": 1.0, "B": 1.0, "kappa": 1.0, "L_Phi": 2.0, "N": 2}
    with pytest.raises(FedmmError, match=sentence):
        Constants(**{**usual, **change})  # type: ignore[arg-type]


def test_what_is_not_a_function_is_refused(origin: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(FedmmError, match="client 1 must be a function"):
        estimate_constants([3.0], [origin])  # type: ignore[list-item]
    with pytest.raises(FedmmError, match="at least one point"):
        estimate_constants([lambda w, p: (w * p).sum()], [])
