"""FedMM whose server takes optimistic steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.algorithms.fedmm import FedMM
from fedmm.core.algorithm import Aggregated, Coefficients, State, mean_steps
from fedmm.core.layout import Layout
from fedmm.core.validation import positive


@dataclass(frozen=True)
class OptimisticFedMM(FedMM):
    """FedMM whose duals are minus the clients' last fields, so that the server knows the previous mean field.

    If F_i changes little within a round, a client ends at z_i - z_0 = -(a / mu) (F_i + dual_i) with
    a = 1 - (1 - mu eta)^M. A dual that changes by (mu / a) (z_i - z_0) is then -F_i, and the server below goes to
    z_0 - theta s (2 F - F'), with F the mean field and F' that of the previous round: an optimistic step, stable on
    purely rotational games. At a saddle every z_i is z_0 and h is 0, so the saddles are FedMM's. Nothing more is sent.

    ===========  ================  ====================
    argument     symbol            meaning
    ===========  ================  ====================
    lr_min       eta_1             step size for omega
    lr_max       eta_2             step size for psi
    penalty_min  mu_1              penalty on omega's distance to the server's point
    penalty_max  mu_2              penalty on psi's distance to the server's point
    dual_decay   eta_3             the share of the duals in the server's step is eta_3^t
    local_steps  M_i               local steps per round; M is their mean over the clients
    server_lr    theta             the server's step size in units of s, the smaller of M eta and 1 / mu
    (state)      lambda_i, beta_i  the two halves of ``dual``, as in FedMM
    (state)      h                 ``mean_dual`` of the server, as in FedMM
    ===========  ================  ====================

    client:  M_i times  z <- z - eta (F_i(z) + mu (z - z_0) + dual_i),  from z_0
             dual_i <- dual_i + (mu / a) (z_i - z_0)
             upload z_i
    server:  h   <- h + (mu / a) (1 / N) (sum of z_i - z_0 over the clients of the round)
             z_0 <- z_0 + theta s ((mu / a) (mean of z_i - z_0) + eta_3^t h)

    a and s use the learning rates without their schedule, so that the terms that a dual sums have the same scale.
    """

    name: ClassVar[str] = "fedmm_optimistic"
    summary: ClassVar[str] = "FedMM whose server takes optimistic steps, from the duals and at no extra bytes"

    server_lr: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("server_lr", self.server_lr)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        lr, steps = layout.join(self.lr_min, self.lr_max), mean_steps(self.local_steps)
        response = 1 - (1 - c.penalty * lr) ** steps
        reach = self.server_lr * torch.minimum(steps * lr, 1 / c.penalty)
        # Rates beyond 2 / mu diverge, and may have no positive response to divide by.
        recovery = torch.where(response > 0, c.penalty / response, c.penalty)
        return Coefficients(c, recovery=recovery, reach=reach)

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        return {"z": z}, {"dual": client["dual"] + c.recovery * (z - sent["z"])}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        mean_dual = server["mean_dual"] + c.recovery * uploads.gain["z"]
        ahead = c.recovery * (uploads.mean["z"] - server["z"]) + c.dual_share * mean_dual
        return {"z": server["z"] + c.reach * ahead, "mean_dual": mean_dual}

    def restored_client(self, sent: State, totals: State, c: Coefficients) -> State:
        return {"dual": c.recovery * totals["z"]}
