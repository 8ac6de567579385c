"""DRFA, distributionally robust federated averaging: clients drawn by their weights, losses at a random local step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.algorithms.site_weights.agnostic import AgnosticWeights
from fedmm.core.algorithm import Aggregated, Coefficients, LocalSteps, State, mean_steps
from fedmm.core.layout import Layout
from fedmm.core.schedules import AlternatingSteps
from fedmm.core.seeding import key


@dataclass(frozen=True)
class DRFA(AgnosticWeights):
    """Pairs of rounds: local steps of clients drawn by weight, then losses of clients drawn anew at a mean snapshot.

    ===================  ======  ====================
    argument             symbol  meaning
    ===================  ======  ====================
    lr_min               eta_1   step size for omega
    lr_max               eta_2   step size for psi
    local_steps          tau     local steps of the first round of a pair
    lr_weights           gamma   step size of the clients' weights; a pair takes tau steps in one
    regulariser                  of the weights: ``none``, ``chi_square`` or ``kl``
    regulariser_weight   s       how much it counts
    (state)              lambda  ``weights`` of the server, one for each client: 1 / N at the start
    (state)              w       ``asked`` of the server: what it sends in the next round
    ===================  ======  ====================

    first   m clients, drawn by lambda
            client:  tau times  z <- z - eta F_i(z),  from z_0
                     upload z_i and w_i - z_0, with w_i where it was after t' steps
            server:  z_0 <- mean of z_i;  w <- mean of w_i
    second  m clients, drawn uniformly
            client:  upload f_i(w), and nothing else
            server:  lambda <- the point of the simplex nearest to lambda + tau gamma v,  v_i = (N / m) f_i(w), else 0

    This is Deng, Kamani and Mahdavi (2020), who have only omega; t' is uniform in 1 ... tau. Our choices: t' depends on
    the round alone, clients are drawn without replacement, and the fields of clients that are certain to be drawn are
    multiplied by m lambda_i, which keeps the mean unbiased (:func:`fedmm.core.federation.weighted_draw`). With all
    clients in every round that is N lambda_i F_i, as in AFL. The regularisers' rules are in ``AgnosticWeights``.
    """

    name: ClassVar[str] = "drfa"
    summary: ClassVar[str] = "the worst mixture of the clients, which are drawn by weight, in pairs of rounds (DRFA)"
    draws_by_importance: ClassVar[bool] = True

    local_steps: LocalSteps = 20

    @property
    def step_schedule(self) -> AlternatingSteps:
        return AlternatingSteps()

    def draws(self, t: int) -> bool:
        return t % 2 == 0

    def reports_only(self, t: int) -> bool:
        return t % 2 == 1

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        return Coefficients(
            c,
            first=layout.scalar(1.0 - t % 2),
            snapshot=layout.scalar(key("snapshot", t) / (1 << 63)),
            lr_weights=mean_steps(self.local_steps) * c.lr_weights,
        )

    def init_server(self, z: Tensor) -> State:
        return {"z": z, "asked": z}

    def broadcast(self, server: State) -> State:
        return {"z": server["asked"]}

    def begin(self, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        return {"snapshot": z, "taken": torch.zeros_like(z[..., :1])}

    def step(
        self, z: Tensor, sent: State, client: State, F: Tensor, G: Tensor, c: Coefficients
    ) -> tuple[Tensor, State]:
        z = torch.where(c.first > 0, z - c.lr * F, z)
        taken = client["taken"] + 1
        chosen = torch.minimum((c.snapshot * c.steps).floor() + 1, c.steps)
        return z, {"snapshot": torch.where(taken == chosen, z, client["snapshot"]), "taken": taken}

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        return {"z": z, "snapshot": client["snapshot"] - sent["z"]}, {}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        first = c.first > 0
        return {
            "z": torch.where(first, uploads.mean["z"], server["z"]),
            "asked": torch.where(first, server["z"] + uploads.mean["snapshot"], server["z"]),
            "weights": torch.where(
                first, server["weights"], self.ascended(server["weights"], uploads, c.lr_weights, c)
            ),
        }
