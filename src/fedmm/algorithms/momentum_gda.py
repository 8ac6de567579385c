"""Momentum Local SGDA: steps along a running mean of the fields, which is averaged like the point."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.algorithms.fedavg_gda import FedAvgGDA
from fedmm.core.algorithm import Aggregated, Coefficients, State, steps_in_mean
from fedmm.core.layout import Layout
from fedmm.core.validation import fraction


@dataclass(frozen=True)
class MomentumGDA(FedAvgGDA):
    """Local descent-ascent steps along a running mean d of the fields; the server averages both z_i and d_i.

    ===========  ==============  ====================
    argument     symbol          meaning
    ===========  ==============  ====================
    lr_min       alpha eta_1     step size for omega
    lr_max       alpha eta_2     step size for psi
    local_steps  M_i             local steps per round
    server_lr                    how far the server goes from z_0 to the mean
    momentum     1 - beta alpha  m, the share of d that a step keeps; 0 is FedAvgGDA
    (state)      d               ``direction`` of the server; it starts as the first field
    ===========  ==============  ====================

    client:  M_i times  d <- m d + (1 - m) F_i(z);  z <- z - eta d,  from z_0 and d_0
             upload z_i and d_i
    server:  z_0 <- mean of z_i;  d_0 <- mean of d_i
    """

    name: ClassVar[str] = "momentum_gda"
    summary: ClassVar[str] = "FedAvgGDA with momentum that is averaged too, two vectors each way (Momentum Local SGDA)"

    momentum: float = field(default=0.9, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("momentum", self.momentum)

    def steps_told(self, own: int) -> int:
        return steps_in_mean(self.momentum, own)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        return Coefficients(c, momentum=layout.scalar(self.momentum))

    def init_server(self, z: Tensor) -> State:
        return {**super().init_server(z), "direction": torch.zeros_like(z)}

    def begin(self, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        return {"direction": sent["direction"]}

    def step(
        self, z: Tensor, sent: State, client: State, F: Tensor, G: Tensor, c: Coefficients
    ) -> tuple[Tensor, State]:
        d = client["direction"]
        begun = (d != 0).any(dim=-1, keepdim=True)
        d = torch.where(begun, c.momentum * d + (1 - c.momentum) * F, F)
        return z - c.lr * d, {"direction": d}

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        return {"z": z, "direction": client["direction"]}, {}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        return {**super().server_update(server, uploads, c), "direction": uploads.mean["direction"]}
