"""FedProxGDA, Algorithm 2 of the paper with its proximal term."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fedmm.algorithms.averaging import Averaging
from fedmm.core.algorithm import Coefficients, LocalSteps, State
from fedmm.core.layout import Layout, PerGroup
from fedmm.core.validation import per_group


@dataclass(frozen=True)
class FedProxGDA(Averaging):
    """Local descent-ascent steps that are pulled towards the server's point, followed by averaging.

    ===========  ======  ====================
    argument     symbol  meaning
    ===========  ======  ====================
    lr_min       eta_1   step size for omega
    lr_max       eta_2   step size for psi
    penalty_min  mu_1    pull of omega to the server's point
    penalty_max  mu_2    pull of psi to the server's point
    local_steps  M_i     local steps per round
    server_lr            how far the server goes from z_0 to the mean; the paper's rule is 1
    ===========  ======  ====================

    client:  M_i times  z <- z - eta (F_i(z) + mu (z - z_0)),  from z_0
    server:  z_0 <- mean of z_i
    """

    name: ClassVar[str] = "fedprox_gda"
    summary: ClassVar[str] = "FedAvgGDA with a proximal term (Algorithm 2)"

    penalty_min: PerGroup = 1.0
    penalty_max: PerGroup = 1.0
    local_steps: LocalSteps = 20
    server_lr: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        per_group("penalty_min", self.penalty_min, zero=True)
        per_group("penalty_max", self.penalty_max, zero=True)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        return Coefficients(c, penalty=layout.join(self.penalty_min, self.penalty_max))

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * (F + c.penalty * (z - sent["z"]))
