"""FedAvgGDA, Algorithm 2 of the paper without its proximal term."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fedmm.algorithms.averaging import Averaging
from fedmm.core.algorithm import Coefficients, LocalSteps, State


@dataclass(frozen=True)
class FedAvgGDA(Averaging):
    """M_i local descent-ascent steps per round, followed by averaging.

    ===========  ======  ====================
    argument     symbol  meaning
    ===========  ======  ====================
    lr_min       eta_1   step size for omega
    lr_max       eta_2   step size for psi
    local_steps  M_i     local steps per round
    server_lr            how far the server goes from z_0 to the mean; the paper's rule is 1
    ===========  ======  ====================

    All averaging algorithms also have options for a server optimiser and normalised updates: see ``Averaging``.

    client:  M_i times  z <- z - eta F_i(z),  from z_0
    server:  z_0 <- mean of z_i
    """

    name: ClassVar[str] = "fedavg_gda"
    summary: ClassVar[str] = "local descent-ascent steps, then the mean (Algorithm 2)"

    local_steps: LocalSteps = 20
    server_lr: float = field(default=1.0, kw_only=True)

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * F
