"""FedMM whose server moves the adversary along the mean field itself, without the momentum of the duals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.algorithms.fedmm_variants.averaged import AveragedFedMM
from fedmm.core.algorithm import Aggregated, Coefficients, State, mean_steps
from fedmm.core.layout import Layout, PerGroup
from fedmm.core.validation import positive


@dataclass(frozen=True)
class AscentFedMM(AveragedFedMM):
    """FedMM with plain gradient ascent in psi at the server, and an averaged model for predictions.

    The mean of FedMM's duals moves the server's point like momentum. Momentum helps omega, which descends a loss, but
    makes the adversary overshoot. The server can do without it: if F_i changes little within a round, a client ends at
    z_i - z_0 = -(a / mu) (F_i + dual_i) with a = 1 - (1 - mu eta)^M, so the server knows the mean field,

        F = -(mu / a) (mean of z_i - z_0) - h,

    and psi takes one step along it. Its size is theta times that of the M local steps together, or theta / mu_2 if that
    is smaller, since no number of local steps takes a client further. At a saddle every z_i is z_0 and h is 0, so the
    saddles are FedMM's. Nothing more is sent.

    =============  ================  ====================
    argument       symbol            meaning
    =============  ================  ====================
    lr_min         eta_1             step size for omega
    lr_max         eta_2             step size for psi
    penalty_min    mu_1              penalty on omega's distance to the server's point
    penalty_max    mu_2              penalty on psi's distance to the server's point
    dual_decay     eta_3             the share with which the duals move the server's point is eta_3^t
    local_steps    M_i               local steps per round; M is their mean over the clients
    server_lr_max  theta             the server's step size in psi, in units of the smaller of M eta_2 and 1 / mu_2
    average_rate   kappa             the averaged model moves by max(kappa, 10 / (t + 10)) to z_0; 1 keeps no average
    (state)        lambda_i, beta_i  the two halves of ``dual``, as in FedMM
    (state)        h                 ``mean_dual`` of the server, as in FedMM
    (state)        z_bar             ``average`` of the server, which predicts: over about the last tenth of the rounds
                                     so far, and at most the last 1 / kappa; it starts at the first point
    =============  ================  ====================

    client:  as in FedMM
    server:  F     <- -(mu / a) (mean of z_i - z_0) - eta_3^t h
             h     <- h + (mu / N) (sum of z_i - z_0 over the clients of the round)
             omega <- mean of omega_i + (eta_3^t / mu) h
             psi   <- psi - theta min(M eta_2, 1 / mu_2) F
             z_bar <- z_bar + max(kappa, 10 / (t + 10)) (z_0 - z_bar)
    """

    name: ClassVar[str] = "fedmm_ascent"
    summary: ClassVar[str] = "FedMM with plain ascent of the adversary at the server, and an averaged model"

    penalty_min: PerGroup = 2.0
    penalty_max: PerGroup = 2.0
    server_lr_max: float = field(default=1.75, kw_only=True)
    average_rate: float = field(default=0.01, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("server_lr_max", self.server_lr_max)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        steps, theta = mean_steps(self.local_steps), self.server_lr_max
        response = 1 - (1 - c.penalty * c.lr) ** steps
        return Coefficients(
            c,
            # If the schedule's rate is 0, no client moves, and the mean field is taken from the duals alone.
            recovery=torch.where(response > 0, c.penalty / response, 0.0),
            ascent=torch.minimum(layout.join(0.0, theta * steps) * c.lr, layout.join(0.0, theta) / c.penalty),
            ascends=layout.join(0.0, 1.0),
        )

    def mean_field(self, server: State, uploads: Aggregated, c: Coefficients) -> Tensor:
        """Return the mean of the clients' fields at the point that was sent, recovered from their uploads."""
        return -c.recovery * (uploads.mean["z"] - server["z"]) - c.dual_share * server["mean_dual"]

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        return self.ascend(server, uploads, self.mean_field(server, uploads, c), c)

    def ascend(self, server: State, uploads: Aggregated, mean_field: Tensor, c: Coefficients) -> State:
        """Return the server's new state after a step of psi along the mean field with step size ``c.ascent``."""
        after = super().server_update(server, uploads, c)
        z = torch.where(c.ascends > 0, server["z"] - c.ascent * mean_field, after["z"])
        return self.averaged(server, {**after, "z": z}, c)
