"""Local extragradient: evaluate the field one step ahead, and step from the current point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmm.algorithms.fedavg_gda import FedAvgGDA
from fedmm.core.algorithm import Coefficients, State


@dataclass(frozen=True)
class Extragradient(FedAvgGDA):
    """Local extragradient steps, followed by averaging.

    The field at the point that a plain step would reach accounts for the rotation of the game: on x y, where
    descent-ascent moves away from the saddle, extragradient approaches it. A step costs two gradients.

    ===========  ======  ====================
    argument     symbol  meaning
    ===========  ======  ====================
    lr_min       eta_1   step size for omega
    lr_max       eta_2   step size for psi
    local_steps  M_i     local steps per round
    server_lr            how far the server goes from z_0 to the mean
    ===========  ======  ====================

    client:  M_i times  z <- z - eta F_i(z - eta F_i(z)),  from z_0, both fields on the same batch
    server:  z_0 <- mean of z_i
    """

    name: ClassVar[str] = "extragradient"
    summary: ClassVar[str] = "FedAvgGDA with extragradient steps, of two gradients each"
    looks: ClassVar[bool] = True

    def look(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * F

    def step(
        self, z: Tensor, sent: State, client: State, F: Tensor, G: Tensor, c: Coefficients
    ) -> tuple[Tensor, State]:
        return z - c.lr * G, client
