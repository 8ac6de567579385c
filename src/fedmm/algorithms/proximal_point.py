"""Local proximal point steps, each solved inexactly by a few fixed-point steps (hybrid proximal extragradient)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.algorithms.fedavg_gda import FedAvgGDA
from fedmm.core.algorithm import Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.validation import at_least


@dataclass(frozen=True)
class ProximalPoint(FedAvgGDA):
    """Local steps to the proximal point w = a - eta F_i(w) of an anchor a, which then moves there; then averaging.

    If eta L < 1, with L the Lipschitz constant of F_i, w converges to the resolvent (I + eta F_i)^-1 a: an implicit
    step, which is stable on purely rotational games. Each local step costs one gradient, on a new batch.

    ===========  ======  ====================
    argument     symbol  meaning
    ===========  ======  ====================
    lr_min       eta_1   step size for omega
    lr_max       eta_2   step size for psi
    local_steps  M_i     local steps per round
    server_lr            how far the server goes from z_0 to the mean
    inner_steps  K       local steps from one anchor; 2 is extragradient with two batches, 1 would be FedAvgGDA
    ===========  ======  ====================

    client:  M_i times  w <- a - eta F_i(w),  from w = a = z_0;  a <- w after every K, while K or more are left
             upload w
    server:  z_0 <- mean of w_i

    So the last anchor of a round gets K to 2 K - 1 steps, or all M_i if these are fewer: a remainder of one step would
    be a plain step, which leaves the saddle of a rotational game. ``normalize_steps`` counts anchors, not steps.
    """

    name: ClassVar[str] = "proximal_point"
    summary: ClassVar[str] = "FedAvgGDA with inexact proximal (implicit) steps, of several gradients each"

    inner_steps: int = field(default=4, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("inner_steps", self.inner_steps, 2)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        return Coefficients(c, inner_steps=layout.scalar(self.inner_steps))

    def steps_told(self, own: int) -> int:
        return max(1, own // self.inner_steps)

    def client_weights(self, steps: Tensor) -> Tensor | None:
        return super().client_weights((steps / self.inner_steps).floor().clamp(min=1.0))

    def begin(self, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        return {"anchor": z, "taken": torch.zeros_like(z[..., :1])}

    def step(
        self, z: Tensor, sent: State, client: State, F: Tensor, G: Tensor, c: Coefficients
    ) -> tuple[Tensor, State]:
        taken = client["taken"]
        moves = (taken % c.inner_steps == 0) & (c.steps - taken >= c.inner_steps)
        anchor = torch.where(moves, z, client["anchor"])
        return anchor - c.lr * F, {"anchor": anchor, "taken": taken + 1}
