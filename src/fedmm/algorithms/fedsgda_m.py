"""FedSGDA-M: local steps along a variance-reduced estimate of the field (STORM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, LocalSteps, State, steps_in_mean
from fedmm.core.layout import Layout
from fedmm.core.schedules import as_schedule
from fedmm.core.validation import fraction


@dataclass(frozen=True)
class FedSGDAM(Algorithm):
    """Local steps along an estimate u of the field, corrected by how the batch's field changed since the last point.

    F_i(z) - F_i(z') on one batch has less noise than either term, so u has less noise than a single batch and tracks
    the field without the lag of momentum. With exact fields u is F_i(z). A step costs two gradients.

    ===========  ======  ====================
    argument     symbol  meaning
    ===========  ======  ====================
    lr_min       eta_1   step size for omega
    lr_max       eta_2   step size for psi
    local_steps  M_i     local steps per round
    momentum     1 - a   the share of the estimate's error that a step keeps; 0 is FedAvgGDA
    (state)      u       ``estimate`` of the server; it starts as the first field
    ===========  ======  ====================

    client:  M_i times  u <- F_i(z) + (1 - a) (u - F_i(z')),  z' the point before, both fields on the same batch
                        z <- z - eta u,  from z_0 and u_0
             upload z_i and u_i
    server:  z_0 <- mean of z_i;  u_0 <- mean of u_i

    The first z' of a round is the mean of the clients' points before their last steps. It equals z_0 + eta u_0, so it
    need not be sent.
    """

    name: ClassVar[str] = "fedsgda_m"
    summary: ClassVar[str] = "local steps along a variance-reduced field (STORM), two vectors each way"
    looks: ClassVar[bool] = True

    local_steps: LocalSteps = 20
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("momentum", self.momentum)

    def steps_told(self, own: int) -> int:
        return steps_in_mean(self.momentum, own)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        factor = as_schedule("lr_schedule", self.lr_schedule)(max(t - 1, 0), rounds)
        last_lr = layout.join(self.lr_min, self.lr_max) * factor
        return Coefficients(c, last_lr=last_lr, momentum=layout.scalar(self.momentum))

    def init_server(self, z: Tensor) -> State:
        return {"z": z, "estimate": torch.zeros_like(z)}

    def begin(self, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        return {"estimate": sent["estimate"], "previous": sent["z"] + c.last_lr * sent["estimate"]}

    def look(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return client["previous"].expand_as(z)

    def step(
        self, z: Tensor, sent: State, client: State, F: Tensor, G: Tensor, c: Coefficients
    ) -> tuple[Tensor, State]:
        u = client["estimate"]
        begun = (u != 0).any(dim=-1, keepdim=True)
        u = torch.where(begun, F + c.momentum * (u - G), F)
        return z - c.lr * u, {"estimate": u, "previous": z}

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        return {"z": z, "estimate": client["estimate"]}, {}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        return {"z": uploads.mean["z"], "estimate": uploads.mean["estimate"]}
