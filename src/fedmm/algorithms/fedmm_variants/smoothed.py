"""FedMM with a smoothed adversary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fedmm.algorithms.fedmm import FedMM
from fedmm.core.algorithm import Coefficients, State
from fedmm.core.layout import Layout, PerGroup
from fedmm.core.validation import per_group, within


@dataclass(frozen=True)
class SmoothedFedMM(FedMM):
    """FedMM whose psi is pulled to a centre that follows it slowly, so that the adversary cannot run away.

    The mean of FedMM's duals acts on the server's point like momentum, and the paper's assumption that f_i is strongly
    concave in psi does not hold: over many rounds the adversary overshoots, dies or takes the features with it. The
    pull r (psi - centre) makes every local problem strongly concave around the centre; at a saddle the centre has
    caught up, so the pull vanishes and the saddles are FedMM's. Nothing more is sent: each client keeps the centre.

    =============  ================  ====================
    argument       symbol            meaning
    =============  ================  ====================
    lr_min         eta_1             step size for omega
    lr_max         eta_2             step size for psi
    penalty_min    mu_1              penalty on omega's distance to the server's point
    penalty_max    mu_2              penalty on psi's distance to the server's point
    dual_decay     eta_3             the share with which the duals move the server's point is eta_3^t
    local_steps    M_i               local steps per round
    smoothing_min  r_1               pull of omega to its centre
    smoothing_max  r_2               pull of psi to its centre; 0 for both is FedMM
    centre_rate    b                 how far the centre goes to the server's point in a round
    (state)        lambda_i, beta_i  the two halves of ``dual``, as in FedMM; ``centre`` starts at the first point
    (state)        h                 ``mean_dual`` of the server, as in FedMM
    =============  ================  ====================

    client:  M_i times  z <- z - eta (F_i(z) + mu (z - z_0) + dual_i + r (z - centre)),  from z_0
             dual_i <- dual_i + mu (z_i - z_0)
             centre <- centre + b (z_0 - centre)
             upload z_i
    server:  as in FedMM
    """

    name: ClassVar[str] = "fedmm_smoothed"
    summary: ClassVar[str] = "FedMM with an adversary that is held near its own slow average: as fast, and steadier"

    smoothing_min: PerGroup = field(default=0.0, kw_only=True)
    smoothing_max: PerGroup = field(default=1.0, kw_only=True)
    centre_rate: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        per_group("smoothing_min", self.smoothing_min, zero=True)
        per_group("smoothing_max", self.smoothing_max, zero=True)
        within("centre_rate", self.centre_rate, 0.0, 1.0)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        smoothing = layout.join(self.smoothing_min, self.smoothing_max)
        return Coefficients(c, smoothing=smoothing, centre_rate=layout.scalar(self.centre_rate))

    def init_client(self, z: Tensor) -> State:
        return {**super().init_client(z), "centre": z.clone()}

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        pull = c.penalty * (z - sent["z"]) + c.smoothing * (z - client["centre"])
        return z - c.lr * (F + pull + client["dual"])

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        upload, after = super().finish(z, sent, client, c)
        centre = client["centre"] + c.centre_rate * (sent["z"] - client["centre"])
        return upload, {**after, "centre": centre}

    def restored_client(self, sent: State, totals: State, c: Coefficients) -> State:
        return {**super().restored_client(sent, totals, c), "centre": sent["z"].clone()}
