"""Extreme eigenvalues, spectral norms and linear systems of matrices that are known only by their products."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError

Product = Callable[[Tensor], Tensor]
"""v ``[n]`` to A v ``[m]``."""


class Extremes(NamedTuple):
    """The smallest and the largest eigenvalue."""

    low: float
    high: float


def extreme_eigenvalues(product: Product, like: Tensor, steps: int = 100, seed: int = 0) -> Extremes:
    """Of a symmetric matrix, by Lanczos' method with full orthogonalisation.

    like: a vector of the matrix's size, dtype and device. With as many steps as the matrix has rows the result is exact
    to rounding; with fewer, the largest is from below and the smallest from above.
    """
    size = like.numel()
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(size, generator=generator, dtype=torch.float64).to(like)
    basis = [q / q.norm()]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    largest = torch.zeros((), dtype=like.dtype, device=like.device)
    for step in range(min(steps, size)):
        w = product(basis[-1])
        diagonal.append(basis[-1] @ w)
        largest = torch.maximum(largest, w.norm())
        known = torch.stack(basis)
        for _ in range(2):
            w = w - known.T @ (known @ w)
        length = w.norm()
        if step + 1 == min(steps, size) or length <= 10 * torch.finfo(like.dtype).eps * largest:
            break
        beside.append(length)
        basis.append(w / length)
    tridiagonal = torch.diag(torch.stack(diagonal))
    if beside:
        off = torch.stack(beside)
        tridiagonal = tridiagonal + torch.diag(off, 1) + torch.diag(off, -1)
    values = torch.linalg.eigvalsh(tridiagonal)
    return Extremes(float(values[0]), float(values[-1]))


def symmetric_norm(product: Product, like: Tensor, steps: int = 100) -> float:
    """The spectral norm of a symmetric matrix."""
    low, high = extreme_eigenvalues(product, like, steps)
    return max(-low, high)


def spectral_norm(product: Product, transposed: Product, like: Tensor, steps: int = 100) -> float:
    """The largest singular value of any matrix; like: a vector that it multiplies."""
    return sqrt(max(0.0, extreme_eigenvalues(lambda v: transposed(product(v)), like, steps).high))


def solve_definite(product: Product, right: Tensor, tolerance: float) -> Tensor:
    """x with A x = right for a symmetric positive definite A, by conjugate gradients."""
    x = torch.zeros_like(right)
    residual = direction = right
    square = residual @ residual
    target = tolerance**2 * square
    for _ in range(10 * right.numel() + 20):
        if square <= target:
            break
        along = product(direction)
        curvature = direction @ along
        if not curvature > 0:
            raise FedmmError("f is not strongly concave in psi: along some direction its curvature is not negative")
        share = square / curvature
        x = x + share * direction
        residual = residual - share * along
        before, square = square, residual @ residual
        direction = residual + (square / before) * direction
    return x
