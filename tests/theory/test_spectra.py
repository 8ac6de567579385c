"""Spectra and linear systems from products alone, beside torch's dense answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.theory.spectra import extreme_eigenvalues, solve_definite, spectral_norm, symmetric_norm

FLOAT64 = torch.float64


def symmetric(values: list[float], seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=FLOAT64, generator=random))
    return basis @ torch.diag(torch.tensor(values, dtype=FLOAT64)) @ basis.T


@pytest.mark.parametrize(
    "values",
    [[3.0], [-2.0, 5.0], [1.0, 1.0, 1.0], [0.0, 0.0], [-7.0, -7.0, 2.0, 2.0, 2.0], [*map(float, range(-9, 30))]],
)
def test_lanczos_finds_both_ends_of_a_spectrum(values: list[float]) -> None:
    matrix = symmetric(values)
    low, high = extreme_eigenvalues(lambda v: matrix @ v, matrix[0])
    assert (low, high) == pytest.approx((min(values), max(values)), abs=1e-12)


def test_a_few_steps_err_to_the_inside() -> None:
    matrix = symmetric([*map(float, range(200))])
    exact = (0.0, 199.0)
    before = (99.0, 99.0)
    for steps in (3, 10, 40):
        low, high = extreme_eigenvalues(lambda v: matrix @ v, matrix[0], steps=steps)
        assert exact[0] <= low < before[0]
        assert before[1] < high <= exact[1]
        before = (low, high)
    assert before == pytest.approx(exact, abs=0.5)


def test_norms_are_those_of_the_dense_matrices() -> None:
    random = torch.Generator().manual_seed(1)
    wide = torch.randn(5, 9, dtype=FLOAT64, generator=random)
    found = spectral_norm(lambda v: wide @ v, lambda u: wide.T @ u, wide[0])
    assert found == pytest.approx(float(torch.linalg.matrix_norm(wide, 2)), rel=1e-12)
    negative = symmetric([-6.0, 1.0, 5.0])
    assert symmetric_norm(lambda v: negative @ v, negative[0]) == pytest.approx(6.0, rel=1e-12)


def test_conjugate_gradients_solve_definite_systems() -> None:
    matrix = symmetric([0.1, 1.0, 2.0, 30.0])
    right = torch.arange(4, dtype=FLOAT64)
    torch.testing.assert_close(
        solve_definite(lambda v: matrix @ v, right, 1e-13), torch.linalg.solve(matrix, right), rtol=1e-9, atol=1e-9
    )


def test_a_system_that_is_not_definite_is_refused() -> None:
    matrix = symmetric([-1.0, 1.0])
    with pytest.raises(FedmmError, match="not strongly concave in psi"):
        solve_definite(lambda v: matrix @ v, torch.ones(2, dtype=FLOAT64), 1e-12)
