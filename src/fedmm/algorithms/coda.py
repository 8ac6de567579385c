"""CODA+ and CODASCA: averaging in stages, each with smaller steps and a fixed point to which omega is pulled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.algorithms.averaging import Averaging
from fedmm.algorithms.fedavg_gda import FedAvgGDA
from fedmm.algorithms.scaffold_gda import ScaffoldGDA
from fedmm.core.algorithm import Aggregated, Coefficients, State
from fedmm.core.errors import require
from fedmm.core.layout import Layout, PerGroup
from fedmm.core.validation import at_least, per_group, positive


@dataclass(frozen=True)
class Stages(Averaging):
    """An averaging algorithm on f + (1 / 2 gamma) ||omega - v||^2, with v the server's omega when a stage begins."""

    smoothing_min: PerGroup = field(default=0.002, kw_only=True)
    stage_rounds: int = field(default=100, kw_only=True)
    stage_decay: float = field(default=3.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        per_group("smoothing_min", self.smoothing_min, zero=True)
        at_least("stage_rounds", self.stage_rounds, 1)
        positive("stage_decay", self.stage_decay)
        require(self.stage_decay >= 1, f"stage_decay must be at least 1, not {self.stage_decay!r}")

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        stage = t // self.stage_rounds
        return Coefficients(
            c,
            lr=c.lr * self.stage_decay**-stage,
            smoothing=layout.join(self.smoothing_min, 0.0),
            renewed=layout.scalar(float((t + 1) % self.stage_rounds == 0)),
        )

    def init_server(self, z: Tensor) -> State:
        return {**super().init_server(z), "reference": z.clone()}

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return super().local_step(z, sent, client, F + c.smoothing * (z - sent["reference"]), c)

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        after = super().server_update(server, uploads, c)
        return {**after, "reference": torch.where(c.renewed > 0, after["z"], server["reference"])}


@dataclass(frozen=True)
class CODAPlus(Stages, FedAvgGDA):
    """FedAvgGDA in stages.

    =============  =========  ====================
    argument       symbol     meaning
    =============  =========  ====================
    lr_min         eta_1      step size for omega in the first stage
    lr_max         eta_2      step size for psi in the first stage
    local_steps    I          local steps per round
    server_lr                 how far the server goes from z_0 to the mean
    smoothing_min  1 / gamma  pull of omega to v
    stage_rounds   T_0 / I    rounds per stage
    stage_decay               what the step sizes are divided by after a stage
    (state)        v          ``reference`` of the server, of which only omega is used
    =============  =========  ====================

    client:  I times  z <- z - eta (F_i(z) + (1 / gamma) (omega - v, 0)),  from z_0
    server:  z_0 <- mean of z_i;  after a stage  v <- omega,  eta <- eta / decay
    """

    name: ClassVar[str] = "coda_plus"
    summary: ClassVar[str] = "FedAvgGDA in stages with ever smaller steps, pulled to where each stage began (CODA+)"


@dataclass(frozen=True)
class CODASCA(Stages, ScaffoldGDA):
    """SCAFFOLD-GDA in stages.

    =============  =========  ====================
    argument       symbol     meaning
    =============  =========  ====================
    lr_min         eta_1      step size for omega in the first stage
    lr_max         eta_2      step size for psi in the first stage
    local_steps    I          local steps per round
    server_lr      eta_g      how far the server goes from z_0 to the mean
    smoothing_min  1 / gamma  pull of omega to v
    stage_rounds   T_0 / I    rounds per stage
    stage_decay               what the step sizes are divided by after a stage
    (state)        v          ``reference`` of the server, of which only omega is used
    (state)        c_i, c     ``control`` of a client and of the server, as in SCAFFOLD-GDA
    =============  =========  ====================

    client:  I times  z <- z - eta (F_i(z) + (1 / gamma) (omega - v, 0) - c_i + c),  from z_0
             c_i <- c_i - c + (z_0 - z_i) / (I eta)
             upload z_i and the change of c_i
    server:  z_0 <- z_0 + eta_g (mean of z_i - z_0);  c <- c + (sum of the changes) / N
             after a stage  v <- omega,  eta <- eta / decay

    The controls include the pull to v, and correct psi in the same way as omega.
    """

    name: ClassVar[str] = "codasca"
    summary: ClassVar[str] = (
        "SCAFFOLD-GDA in stages with ever smaller steps, pulled to where each stage began (CODASCA)"
    )
