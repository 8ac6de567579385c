"""FedMM, Algorithm 3 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, LocalSteps, State
from fedmm.core.layout import Layout, PerGroup
from fedmm.core.validation import per_group, within


@dataclass(frozen=True)
class FedMM(Algorithm):
    """Local descent-ascent on the augmented Lagrangian, with a dual variable that never leaves its client.

    ===========  ================  ====================
    argument     symbol            meaning
    ===========  ================  ====================
    lr_min       eta_1             step size for omega
    lr_max       eta_2             step size for psi
    penalty_min  mu_1              penalty on omega's distance to the server's point
    penalty_max  mu_2              penalty on psi's distance to the server's point
    dual_decay   eta_3             the share with which the duals move the server's point is eta_3^t
    local_steps  M_i               local steps per round
    (state)      lambda_i, beta_i  the two halves of ``dual``, signed so that both are added; 0 at the start
    (state)      h                 ``mean_dual`` of the server; 0 at the start
    ===========  ================  ====================

    The paper's algorithm, in which all N clients take part in every round:

    client:  M_i times  z <- z - eta (F_i(z) + mu (z - z_0) + dual_i),  from z_0
             dual_i <- dual_i + mu (z_i - z_0)
             upload z_i + (eta_3^t / mu) dual_i
    server:  z_0 <- mean of the uploads

    The equivalent that is computed here sends as many bytes, and stays correct if only some clients take part:

    client:  the same, but upload z_i
    server:  h <- h + (mu / N) (sum of z_i - z_0 over the clients of the round)
             z_0 <- mean of z_i over the clients of the round + (eta_3^t / mu) h

    h is the mean of all N duals, including those of absent clients: a dual changes only when its client is counted,
    and h gains 1 / N of that change. docs/participation.md derives this.
    """

    name: ClassVar[str] = "fedmm"
    summary: ClassVar[str] = "local augmented Lagrangians with a dual variable at each client (Algorithm 3)"
    accumulates: ClassVar[tuple[str, ...]] = ("z",)

    penalty_min: PerGroup = 1.0
    penalty_max: PerGroup = 1.0
    dual_decay: float = 1.0
    local_steps: LocalSteps = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        per_group("penalty_min", self.penalty_min)
        per_group("penalty_max", self.penalty_max)
        within("dual_decay", self.dual_decay, 0.0, 1.0)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        penalty = layout.join(self.penalty_min, self.penalty_max)
        return Coefficients(c, penalty=penalty, dual_share=layout.scalar(self.dual_decay**t))

    def init_server(self, z: Tensor) -> State:
        return {"z": z, "mean_dual": torch.zeros_like(z)}

    def init_client(self, z: Tensor) -> State:
        return {"dual": torch.zeros_like(z)}

    def broadcast(self, server: State) -> State:
        return {"z": server["z"]}

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * (F + c.penalty * (z - sent["z"]) + client["dual"])

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        return {"z": z}, {"dual": client["dual"] + c.penalty * (z - sent["z"])}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        mean_dual = server["mean_dual"] + c.penalty * uploads.gain["z"]
        return {"z": uploads.mean["z"] + c.dual_share / c.penalty * mean_dual, "mean_dual": mean_dual}

    def restored_client(self, sent: State, totals: State, c: Coefficients) -> State:
        return {"dual": c.penalty * totals["z"]}
