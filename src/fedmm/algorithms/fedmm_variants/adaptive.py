"""FedMM whose server steps the adversary along the mean field as far as the measured curvature allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.algorithms.fedmm_variants.ascent import AscentFedMM
from fedmm.core.algorithm import Aggregated, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.validation import positive, within


@dataclass(frozen=True)
class AdaptiveFedMM(AscentFedMM):
    """Ascent FedMM with a step size in psi of at most 1 / L, with L the curvature measured along psi's path.

    Ascent along F is stable up to a step size of 2 / L, with L the curvature of f in psi, which depends on the
    objective and the clients and changes over the rounds. The server gets it for free, from the mean fields F of two
    rounds and the step between them; in round t, rho is at least 1 / (t + 1).

    With step size s, s L is 1 minus the correlation of F with the previous F, so 1 / L is the step size at which
    successive fields are uncorrelated: it shrinks if they oppose each other, and grows if they agree. Noise in F does
    not affect this.

    ==============  ================  ====================
    argument        symbol            meaning
    ==============  ================  ====================
    server_lr_max   theta             the largest step size in psi, in units of the smaller of M eta_2 and 1 / mu_2
    curvature_rate  rho               the share of the newest round in the running means from which L is computed
    others                            as in AscentFedMM
    (state)         d                 ``moved`` of the server, psi's last step
    (state)         p, q              ``turned`` and ``travelled`` of the server: the running means, at every coordinate
    ==============  ================  ====================

    client:  as in FedMM
    server:  F, h, omega and z_bar as in AscentFedMM
             p   <- p + rho (<F - F_before, d> - p)
             q   <- q + rho (<d, d> - q)
             L   <- p / q
             psi <- psi - min(theta min(M eta_2, 1 / mu_2), 1 / L) F,     or the first of them if L is not positive
    """

    name: ClassVar[str] = "fedmm_adaptive"
    summary: ClassVar[str] = "FedMM with ascent of the adversary at the server, by steps that follow its curvature"

    curvature_rate: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("curvature_rate", self.curvature_rate)
        within("curvature_rate", self.curvature_rate, 0.0, 1.0)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        return Coefficients(c, curvature_rate=layout.scalar(max(self.curvature_rate, 1 / (t + 1))))

    def init_server(self, z: Tensor) -> State:
        new = ("field", "moved", "turned", "travelled")
        return {**super().init_server(z), **{name: torch.zeros_like(z) for name in new}}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        mean_field, moved = self.mean_field(server, uploads, c), server["moved"]
        turned = ((mean_field - server["field"]) * moved).sum(-1, keepdim=True).expand_as(moved)
        travelled = moved.square().sum(-1, keepdim=True).expand_as(moved)
        turned = torch.lerp(server["turned"], turned, c.curvature_rate)
        travelled = torch.lerp(server["travelled"], travelled, c.curvature_rate)
        too_long = c.ascent * turned > travelled
        ascent = torch.where(too_long, travelled / torch.where(too_long, turned, 1.0), c.ascent)
        after = self.ascend(server, uploads, mean_field, Coefficients(c, ascent=ascent))
        return {
            **after,
            "field": mean_field,
            "moved": c.ascends * (after["z"] - server["z"]),
            "turned": turned,
            "travelled": travelled,
        }
