"""q-FedAvg: clients count by a power of their losses, with a step size that takes this into account."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, LocalSteps, State
from fedmm.core.validation import not_negative


@dataclass(frozen=True)
class QFFL(Algorithm):
    """q-FedAvg for q-FFL, which replaces the mean of f_i by that of f_i^(q+1) / (q + 1) (Li et al., 2020).

    ===========  ======  ====================
    argument     symbol  meaning
    ===========  ======  ====================
    lr_min       eta_1   step size for omega
    lr_max       eta_2   step size for psi
    local_steps  M_i     local steps per round
    q            q       how much more clients with large losses count; 0 is FedAvgGDA
    ===========  ======  ====================

    client:  M_i times  z <- z - eta F_i(z),  from z_0
             upload z_i, f_i(z_0) and d_i = ||z_i - z_0||^2 / eta
    server:  z_0 <- z_0 + (mean of f_i^q (z_i - z_0)) / (mean of q f_i^(q-1) d_i + f_i^q)

    The paper has only omega and one step size, L = 1 / eta, for which this is its server rule, with numerator and
    denominator multiplied by eta. With several step sizes we take d_i as the sum over all coordinates. Losses must not
    be negative; one below 1e-10 counts as that, so domain adaptation practically ignores clients with only target rows.
    """

    name: ClassVar[str] = "q_ffl"
    summary: ClassVar[str] = "clients count by a power of their losses (q-FFL, q-FedAvg)"
    reports: ClassVar[tuple[str, ...]] = ("loss", "squared_step")
    weighs_clients: ClassVar[bool] = True

    local_steps: LocalSteps = 20
    q: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("q", self.q)

    def structure(self) -> tuple[object, ...]:
        return (self.q,)

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * F

    def report(self, loss: Tensor, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        squares = torch.where(c.lr > 0, (z - sent["z"]).square() / c.lr, 0.0)
        return {"loss": loss, "squared_step": squares.sum(dim=-1)}

    def scalar_weights(self, scalars: State) -> Tensor | None:
        return scalars["loss"].clamp_min(_LEAST) ** self.q

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        assert uploads.counted is not None
        loss = uploads.scalars["loss"].clamp_min(_LEAST)
        curvature = self.q * loss ** (self.q - 1) * uploads.scalars["squared_step"] + loss**self.q
        number = uploads.counted.sum(dim=-1, keepdim=True).clamp_min(1)
        step_size = number / torch.where(uploads.counted, curvature, 0.0).sum(dim=-1, keepdim=True)
        return {"z": server["z"] + step_size * (uploads.mean["z"] - server["z"])}


_LEAST = 1e-10
