"""Derivatives of the clients' functions, and spectra and linear systems of matrices given by their products alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.layout import Layout, Point

Product = Callable[[Tensor], Tensor]
"""Maps v ``[n]`` to A v ``[m]``."""


class Extremes(NamedTuple):
    """The smallest and the largest eigenvalue."""

    low: float
    high: float


def extreme_eigenvalues(product: Product, like: Tensor, steps: int = 100, seed: int = 0) -> Extremes:
    """Return the extreme eigenvalues of a symmetric matrix, by Lanczos' method with full orthogonalisation.

    like: a vector with the matrix's size, dtype and device. With as many steps as the matrix has rows, the result is
    exact to rounding; with fewer, the largest is a lower bound and the smallest an upper bound.
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
    """Return the spectral norm of a symmetric matrix."""
    low, high = extreme_eigenvalues(product, like, steps)
    return max(-low, high)


def spectral_norm(product: Product, transposed: Product, like: Tensor, steps: int = 100) -> float:
    """Return the largest singular value of any matrix. like: a vector that it can multiply."""
    return sqrt(max(0.0, extreme_eigenvalues(lambda v: transposed(product(v)), like, steps).high))


def solve_definite(product: Product, right: Tensor, tolerance: float) -> Tensor:
    """Solve A x = right for a symmetric positive definite A, by conjugate gradients."""
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


Function = Callable[..., Tensor]
"""f_i(omega, psi), a 0-dim tensor over all of a client's data, since the theorem has no batches."""


class Derivatives:
    """A function at one point z ``[size]``: its value, its gradient ``[size]``, and products with its Hessian."""

    def __init__(self, function: Function, layout: Layout, z: Tensor) -> None:
        self._z = z.detach().clone().requires_grad_()
        with torch.enable_grad():
            value = function(*layout.as_given({block.name: part for block, part in layout.tensors(self._z)}))
            if not isinstance(value, Tensor) or value.dim() != 0:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise FedmmError(f"a client's function must return a 0-dim tensor, not {got}")
            require(value.requires_grad, "a client's function depends on neither omega nor psi")
            (self._graph,) = torch.autograd.grad(
                value, (self._z,), create_graph=True, allow_unused=True, materialize_grads=True
            )
        self.value = value.detach()
        self.gradient = self._graph.detach()
        self._split = layout.min_size

    def hessian(self, v: Tensor) -> Tensor:
        """Return the Hessian ``[size, size]`` times v ``[size]``."""
        if not self._graph.requires_grad:
            return torch.zeros_like(v)
        (product,) = torch.autograd.grad(
            self._graph, (self._z,), v, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return product.detach()

    def block(self, side: str, other: str, v: Tensor) -> Tensor:
        """Return d^2 f / (d side d other) times v; each side is ``omega`` or ``psi``."""
        whole = torch.zeros_like(self.gradient)
        self._part(whole, other).copy_(v)
        return self._part(self.hessian(whole), side).clone()

    def side(self, side: str) -> Tensor:
        """Return the gradient's part of omega or psi."""
        return self._part(self.gradient, side)

    def _part(self, vector: Tensor, side: str) -> Tensor:
        return vector[: self._split] if side == "omega" else vector[self._split :]


def mean_of(functions: Sequence[Function]) -> Function:
    """Return f, the mean of the clients' functions."""

    def mean(omega: Point, psi: Point) -> Tensor:
        return torch.stack([function(omega, psi) for function in functions]).mean()

    return mean


def require_functions(functions: Sequence[Function]) -> None:
    """Refuse an empty list, and anything that cannot be called."""
    require(len(functions) > 0, "at least one client's function is needed")
    for number, function in enumerate(functions, start=1):
        require(
            callable(function),
            f"client {number} must be a function f(omega, psi) of all its data, not {type(function).__name__}",
        )
