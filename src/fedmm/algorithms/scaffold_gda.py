"""SCAFFOLD-GDA: control variates instead of duals; FedMM's strongest competitor that we know of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.algorithms.averaging import Averaging
from fedmm.core.algorithm import Aggregated, Coefficients, LocalSteps, State


@dataclass(frozen=True)
class ScaffoldGDA(Averaging):
    """Local descent-ascent steps, corrected by the difference between the server's and the client's mean field.

    Not in the paper: Karimireddy et al. (2020), option II, on the signed field. It sends two vectors each way.

    ===========  ======  ====================
    argument     symbol  meaning
    ===========  ======  ====================
    lr_min       eta_1   step size for omega
    lr_max       eta_2   step size for psi
    local_steps  M_i     local steps per round
    server_lr    eta_g   how far the server goes from z_0 to the mean
    (state)      c_i, c  ``control`` of a client and of the server; 0 at the start
    ===========  ======  ====================

    client:  M_i times  z <- z - eta (F_i(z) - c_i + c),  from z_0
             c_i <- c_i - c + (z_0 - z_i) / (M_i eta)
             upload z_i and the change of c_i
    server:  z_0 <- z_0 + eta_g (mean of z_i - z_0);  c <- c + (sum of the changes) / N

    Mean and sum are over the clients of the round, and N counts all clients, so c stays the mean of all c_i.
    """

    name: ClassVar[str] = "scaffold_gda"
    summary: ClassVar[str] = "FedAvgGDA with control variates, two vectors each way (SCAFFOLD)"
    accumulates: ClassVar[tuple[str, ...]] = ("control_change",)

    local_steps: LocalSteps = 20
    server_lr: float = 1.0

    def init_server(self, z: Tensor) -> State:
        return {**super().init_server(z), "control": torch.zeros_like(z)}

    def init_client(self, z: Tensor) -> State:
        return {"control": torch.zeros_like(z)}

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * (F - client["control"] + sent["control"])

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        # If the schedule's rate is 0, nothing moved and the steps' mean field is unknown, so the control stays.
        mean_field = torch.where(c.lr > 0, (sent["z"] - z) / (c.steps * c.lr), sent["control"])
        control = client["control"] - sent["control"] + mean_field
        return {"z": z, "control_change": control - client["control"]}, {"control": control}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        control = server["control"] + uploads.gain["control_change"]
        return {**super().server_update(server, uploads, c), "control": control}

    def restored_client(self, sent: State, totals: State, c: Coefficients) -> State:
        return {"control": totals["control_change"]}
