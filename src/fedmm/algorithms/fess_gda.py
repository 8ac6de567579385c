"""FESS-GDA: averaging with a server that is pulled to a centre, which follows it slowly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fedmm.algorithms.fedavg_gda import FedAvgGDA
from fedmm.core.algorithm import Aggregated, Coefficients, State, mean_steps
from fedmm.core.layout import Layout, PerGroup
from fedmm.core.validation import per_group, within


@dataclass(frozen=True)
class FESSGDA(FedAvgGDA):
    """FedAvgGDA on f + (p / 2) ||omega - s||^2, whose centre s follows omega; only the server applies the pull.

    =============  ======  ====================
    argument       symbol  meaning
    =============  ======  ====================
    lr_min         eta_1   step size for omega
    lr_max         eta_2   step size for psi
    local_steps    M_i     local steps per round; K is their mean over the clients
    server_lr      eta_g   how far the server goes from z_0 to the mean
    smoothing_min  p       pull of omega to its centre; 0 for both is FedAvgGDA
    smoothing_max          the same for psi, which the paper leaves out
    centre_rate    beta    how far the centre goes to the server's point in a round
    (state)        s       ``centre`` of the server; z_0 at the start
    =============  ======  ====================

    client:  M_i times  z <- z - eta F_i(z),  from z_0
    server:  z_0 <- z_0 + eta_g (mean of z_i - z_0) - eta_g K eta p (z_0 - s)
             s   <- s + beta (z_0 - s)
    """

    name: ClassVar[str] = "fess_gda"
    summary: ClassVar[str] = "FedAvgGDA with a server that is held near its own slow average (FESS-GDA)"

    smoothing_min: PerGroup = field(default=1.0, kw_only=True)
    smoothing_max: PerGroup = field(default=0.0, kw_only=True)
    centre_rate: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        per_group("smoothing_min", self.smoothing_min, zero=True)
        per_group("smoothing_max", self.smoothing_max, zero=True)
        within("centre_rate", self.centre_rate, 0.0, 1.0)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        pull = c.server_lr * mean_steps(self.local_steps) * c.lr * layout.join(self.smoothing_min, self.smoothing_max)
        return Coefficients(c, pull=pull, centre_rate=layout.scalar(self.centre_rate))

    def init_server(self, z: Tensor) -> State:
        return {**super().init_server(z), "centre": z.clone()}

    def broadcast(self, server: State) -> State:
        return {"z": server["z"]}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        after = super().server_update(server, uploads, c)
        z = after["z"] - c.pull * (server["z"] - server["centre"])
        return {**after, "z": z, "centre": server["centre"] + c.centre_rate * (z - server["centre"])}
