"""ProxSkip-SGDA: control variates, and rounds of random length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.schedules import GeometricSteps
from fedmm.core.validation import at_least


@dataclass(frozen=True)
class ProxSkipSGDA(Algorithm):
    """Local descent-ascent steps with a control variate h_i; each step is followed by averaging with probability p.

    A round ends when the clients are averaged, so its number of steps is geometric with mean 1 / p. It is drawn from
    the run's seed and is the same at all clients.

    ==========  ======  ====================
    argument    symbol  meaning
    ==========  ======  ====================
    lr_min      g_1     step size for omega
    lr_max      g_2     step size for psi
    mean_steps  1 / p   the mean number of local steps per round; at most 10 times as many are taken
    (state)     h_i     h - dual_i, with ``dual`` of the client
    (state)     h       ``mean_dual`` of the server, the mean of all dual_i; 0 at the start, as all duals
    ==========  ======  ====================

    client:  z <- z - g (F_i(z) - h_i),  from z_0, until the round ends
             dual_i <- dual_i + (p / g) (z_i - z_0)
             upload z_i
    server:  z_0 <- mean of z_i;  h <- h + (p / (g N)) (sum of z_i - z_0 over the clients of the round)

    If all clients take part, h - dual_i is the paper's h_i <- h_i + (p / g) (z_0 - z_i), with the new z_0. The h_i then
    sum to 0, and in this form also if some clients are absent. Where g divides, it is the rate without its schedule.
    """

    name: ClassVar[str] = "proxskip_sgda"
    summary: ClassVar[str] = "descent-ascent with controls, and rounds of random length (ProxSkip, Scaffnew)"
    accumulates: ClassVar[tuple[str, ...]] = ("z",)

    mean_steps: int = 20

    def __post_init__(self) -> None:
        at_least("mean_steps", self.mean_steps, 1)
        super().__post_init__()

    @property
    def steps(self) -> int:
        return self.mean_steps

    @property
    def step_schedule(self) -> GeometricSteps:
        return GeometricSteps(self.mean_steps)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        return Coefficients(c, control_rate=1 / (self.mean_steps * layout.join(self.lr_min, self.lr_max)))

    def init_server(self, z: Tensor) -> State:
        return {"z": z, "mean_dual": torch.zeros_like(z)}

    def init_client(self, z: Tensor) -> State:
        return {"dual": torch.zeros_like(z)}

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * (F + client["dual"] - sent["mean_dual"])

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        return {"z": z}, {"dual": client["dual"] + c.control_rate * (z - sent["z"])}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        return {"z": uploads.mean["z"], "mean_dual": server["mean_dual"] + c.control_rate * uploads.gain["z"]}

    def restored_client(self, sent: State, totals: State, c: Coefficients) -> State:
        return {"dual": c.control_rate * totals["z"]}
