"""FedGDA-GT and SAGDA: local steps along the mean field, which a first round of one step reveals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, LocalSteps, State
from fedmm.core.errors import require
from fedmm.core.layout import Layout
from fedmm.core.validation import positive


@dataclass(frozen=True)
class FedGDAGT(Algorithm):
    """Gradient tracking: local descent-ascent steps, corrected by the fields at the server's point.

    With full batches it is FedGDA-GT (Sun and Wei, 2022), which converges linearly with constant rates if f is strongly
    convex in omega and strongly concave in psi; with smaller batches it is SAGDA (Yang et al., 2022).

    ===========  ======  ====================
    argument     symbol  meaning
    ===========  ======  ====================
    lr_min       eta_1   step size for omega
    lr_max       eta_2   step size for psi
    local_steps  M_i     local steps of two rounds together, at least 2
    server_lr            how far the server goes from the mean of the first steps to that of the others
    (state)      p_i     ``first_step`` of a client: the point after its first step
    ===========  ======  ====================

    first   client:  p_i <- z_0 - eta F_i(z_0),  upload p_i
            server:  z_0 <- mean of p_i
    second  client:  M_i - 1 times  z <- z - eta F_i(z) - (p_i - z_0),  from z_0,  upload z_i
            server:  z_0 <- mean of z_i

    The papers step along F_i(z) - F_i(z_0) + mean F(z_0), with z_0 the point before the first steps. Here eta times the
    last two terms is p_i minus the mean of all p_i, which is the new z_0, and the papers' first local step leads from
    the old z_0 to the new one. One round of theirs, with two vectors each way, is two rounds with one vector here.
    """

    name: ClassVar[str] = "fedgda_gt"
    summary: ClassVar[str] = "local steps along the mean field, found in a first round of one step (FedGDA-GT, SAGDA)"
    in_pairs: ClassVar[bool] = True

    local_steps: LocalSteps = 20
    server_lr: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("server_lr", self.server_lr)
        given = self.local_steps
        counts = given.values() if isinstance(given, Mapping) else given if isinstance(given, Sequence) else [given]
        require(
            min(counts) >= 2, f"local_steps of {self.name} must be at least 2: the first step takes a separate round"
        )

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t - t % 2, rounds)
        first = not self.ends_pair(t)
        return Coefficients(
            c,
            corrected=layout.scalar(0.0 if first else 1.0),
            server_lr=layout.scalar(1.0 if first else self.server_lr),
        )

    def init_client(self, z: Tensor) -> State:
        return {"first_step": z}

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return z - c.lr * F - c.corrected * (client["first_step"] - sent["z"])

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        return {"z": z}, {"first_step": torch.where(c.corrected > 0, client["first_step"], z)}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        return {"z": torch.lerp(server["z"], uploads.mean["z"], c.server_lr)}
