"""FedSGDA, Algorithm 1 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmm.core.algorithm import Algorithm, Coefficients, State


@dataclass(frozen=True)
class FedSGDA(Algorithm):
    """One local descent-ascent step per round, followed by averaging.

    ==========  ======  ====================
    argument    symbol  meaning
    ==========  ======  ====================
    lr_min      eta_1   step size for omega
    lr_max      eta_2   step size for psi
    ==========  ======  ====================

    client:  z_i <- z_0 - eta F_i(z_0)
    server:  z_0 <- mean of z_i
    """

    name: ClassVar[str] = "fedsgda"
    summary: ClassVar[str] = "one local descent-ascent step a round, then the mean (Algorithm 1)"

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * F
