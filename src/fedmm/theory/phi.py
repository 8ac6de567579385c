"""Phi(omega) = max over psi of f(omega, psi), its gradient, and where the maximum lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.core.layout import Layout, Point
from fedmm.core.validation import positive
from fedmm.theory.derivatives import Derivatives, Function, mean_of, require_functions
from fedmm.theory.spectra import solve_definite

_MOST_STEPS = 100
_SHORTEST = 2.0**-40


@dataclass(frozen=True)
class PhiAt:
    """value: Phi(omega). gradient: of Phi, ``[omega's size]``. psi: psi*(omega), ``[psi's size]``."""

    value: float
    gradient: Tensor
    psi: Tensor


class Phi:
    """The function that FedMM is proved to bring to a stationary point; f is the mean of the clients' functions.

    functions: f_i(omega, psi), strongly concave in psi.
    start: (omega, psi) in the form in which the functions take them; psi is where the first search begins.
    tolerance: of ||d_psi f||, relative to its size where a search begins plus 1. By default eps^(2/3) of the dtype.

    The maximum is found by Newton's method with conjugate gradients. By Danskin's theorem the gradient of Phi is
    ``d_omega f(omega, psi*(omega))``: of the mean f with its own ``psi*``, and not of a single f_i with the mean's.
    """

    def __init__(
        self, functions: Sequence[Function], start: tuple[Point, Point], tolerance: float | None = None
    ) -> None:
        require_functions(functions)
        self.layout = Layout.of(*start)
        if tolerance is None:
            tolerance = torch.finfo(self.layout.dtype).eps ** (2 / 3)
        positive("tolerance", tolerance)
        self._tolerance = tolerance
        self._function = mean_of(functions)
        self._guess = self.layout.pack(*start)[self.layout.min_size :]

    def __call__(self, omega: Point) -> PhiAt:
        """Phi at omega, in the form the start was given in."""
        _, psi = self.layout.unpack(torch.cat([self._guess.new_zeros(self.layout.min_size), self._guess]))
        return self.at(self.layout.pack(omega, psi)[: self.layout.min_size])

    def at(self, omega: Tensor) -> PhiAt:
        """Phi at a flat omega ``[omega's size]``; the search begins where the last one ended."""
        here = self._derivatives(omega, self._guess)
        slope = here.side("psi")
        target = self._tolerance * (1 + slope.norm())
        for _ in range(_MOST_STEPS):
            if slope.norm() <= target:
                break
            here = self._newton_step(here, omega)
            slope = here.side("psi")
        else:
            raise FedmmError(f"the maximum over psi was not found in {_MOST_STEPS} Newton steps: is f concave in psi?")
        return PhiAt(float(here.value), here.side("omega").clone(), self._guess)

    def _newton_step(self, here: Derivatives, omega: Tensor) -> Derivatives:
        """One step up, halved until f rises, or until the slope falls where f is flat to rounding."""
        slope = here.side("psi")
        direction = solve_definite(lambda v: -here.block("psi", "psi", v), slope, self._tolerance)
        share = 1.0
        while share > _SHORTEST:
            psi = self._guess + share * direction
            there = self._derivatives(omega, psi)
            rises = there.value >= here.value + 1e-4 * share * (slope @ direction)
            if rises or there.side("psi").norm() < 0.9 * slope.norm():
                self._guess = psi
                return there
            share /= 2
        raise FedmmError("the maximum over psi was not found: no step along Newton's direction makes f larger")

    def _derivatives(self, omega: Tensor, psi: Tensor) -> Derivatives:
        return Derivatives(self._function, self.layout, torch.cat([omega, psi]))
