"""A federated game with unlike clients that is nonconvex in omega and strongly concave in psi."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedmm.theory.spectra import Function

FLOAT64 = torch.float64


def robust_client(seed: int, outlook: float, bend: float) -> Function:
    """Return robust regression with extra curvature ``bend`` against an adversary; constants have a closed form.

    mean log(1 + (X w - y)^2) + bend/2 |w|^2 + w'A p - 1/2 |p|^2 + c'p
    """
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=FLOAT64)

    X, A, c = normal(8, 2), 0.5 * torch.eye(2, dtype=FLOAT64) + 0.2 * normal(2, 2), normal(2)
    y = X @ torch.tensor([1.0, -2.0], dtype=FLOAT64) + outlook

    def f(w: Tensor, p: Tensor) -> Tensor:
        return torch.log1p((X @ w - y).square()).mean() + bend / 2 * w @ w + w @ A @ p - p @ p / 2 + c @ p

    return f


@pytest.fixture
def robust() -> list[Function]:
    """Three clients; only the last is unbounded below in omega."""
    return [robust_client(0, 0.0, 1.0), robust_client(1, 3.0, 0.2), robust_client(2, -3.0, -0.5)]


@pytest.fixture
def origin() -> tuple[Tensor, Tensor]:
    return torch.zeros(2, dtype=FLOAT64), torch.zeros(2, dtype=FLOAT64)
