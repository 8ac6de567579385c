"""First and second derivatives of the clients' functions over the flat vector z = (omega, psi)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.layout import Layout, Point

Function = Callable[..., Tensor]
"""f_i(omega, psi), a 0-dim tensor: of all of a client's data, since the theorem knows no batches."""


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
        """The Hessian ``[size, size]`` times v ``[size]``."""
        if not self._graph.requires_grad:
            return torch.zeros_like(v)
        (product,) = torch.autograd.grad(
            self._graph, (self._z,), v, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return product.detach()

    def block(self, side: str, other: str, v: Tensor) -> Tensor:
        """d^2 f / (d side d other) times v, where the sides are ``omega`` or ``psi``."""
        whole = torch.zeros_like(self.gradient)
        self._part(whole, other).copy_(v)
        return self._part(self.hessian(whole), side).clone()

    def side(self, side: str) -> Tensor:
        """The gradient's part of omega or psi."""
        return self._part(self.gradient, side)

    def _part(self, vector: Tensor, side: str) -> Tensor:
        return vector[: self._split] if side == "omega" else vector[self._split :]


def mean_of(functions: Sequence[Function]) -> Function:
    """f, the mean of the clients' functions."""

    def mean(omega: Point, psi: Point) -> Tensor:
        return torch.stack([function(omega, psi) for function in functions]).mean()

    return mean


def require_functions(functions: Sequence[Function]) -> None:
    """Refuse what are not functions of (omega, psi) alone."""
    require(len(functions) > 0, "at least one client's function is needed")
    for number, function in enumerate(functions, start=1):
        require(
            callable(function),
            f"client {number} must be a function f(omega, psi) of all its data, not {type(function).__name__}",
        )
