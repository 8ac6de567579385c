"""FedAvgGDA, Algorithm 2 of the paper without its proximal term."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, LocalSteps, State
from fedmm.core.layout import Layout
from fedmm.core.validation import positive


@dataclass(frozen=True)
class FedAvgGDA(Algorithm):
    """M_i local descent-ascent steps a round, then the mean.

    ===========  ======  ====================
    argument     symbol  meaning
    ===========  ======  ====================
    lr_min       eta_1   step size for omega
    lr_max       eta_2   step size for psi
    local_steps  M_i     local steps a round
    server_lr            how far the server goes from z_0 to the mean; the paper's rule is 1
    ===========  ======  ====================

    client:  M_i times  z <- z - eta F_i(z),  from z_0
    server:  z_0 <- mean of z_i
    """

    name: ClassVar[str] = "fedavg_gda"
    summary: ClassVar[str] = "local descent-ascent steps, then the mean (Algorithm 2)"

    local_steps: LocalSteps = 20
    server_lr: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("server_lr", self.server_lr)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        return Coefficients(c, server_lr=layout.scalar(self.server_lr))

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * F

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        return {"z": torch.lerp(server["z"], uploads.mean["z"], c.server_lr)}
