"""Local SGDA+: the adversary ascends at a snapshot of the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.algorithms.fedavg_gda import FedAvgGDA
from fedmm.core.algorithm import Aggregated, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.validation import at_least


@dataclass(frozen=True)
class SGDAPlus(FedAvgGDA):
    """Local descent-ascent steps in which psi ascends at a snapshot of omega, which the server renews every S rounds.

    Between renewals psi climbs one fixed function (concave if f is), whatever omega does. A step costs two gradients.

    ==============  =============  ====================
    argument        symbol         meaning
    ==============  =============  ====================
    lr_min          eta_1          step size for omega
    lr_max          eta_2          step size for psi
    local_steps     M_i            local steps per round
    server_lr                      how far the server goes from z_0 to the mean
    snapshot_every  S              rounds after which the snapshot is renewed
    (state)         omega_tilde    ``snapshot`` of the server, of which only omega is used; z_0 at the start
    ==============  =============  ====================

    client:  M_i times  omega <- omega - eta_1 F_i(omega, psi)
                        psi   <- psi - eta_2 F_i(omega_tilde, psi),  from z_0, both fields on the same batch
    server:  z_0 <- mean of z_i;  omega_tilde <- omega_0 every S rounds
    """

    name: ClassVar[str] = "sgda_plus"
    summary: ClassVar[str] = "FedAvgGDA whose adversary ascends at a snapshot of the network (Local SGDA+)"
    looks: ClassVar[bool] = True

    snapshot_every: int = field(default=5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("snapshot_every", self.snapshot_every, 1)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        renewed = float((t + 1) % self.snapshot_every == 0)
        return Coefficients(c, in_psi=layout.join(0.0, 1.0), renewed=layout.scalar(renewed))

    def init_server(self, z: Tensor) -> State:
        return {**super().init_server(z), "snapshot": z.clone()}

    def look(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return torch.where(c.in_psi > 0, z, sent["snapshot"])

    def step(
        self, z: Tensor, sent: State, client: State, F: Tensor, G: Tensor, c: Coefficients
    ) -> tuple[Tensor, State]:
        return z - c.lr * torch.where(c.in_psi > 0, G, F), client

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        after = super().server_update(server, uploads, c)
        return {**after, "snapshot": torch.where(c.renewed > 0, after["z"], server["snapshot"])}
