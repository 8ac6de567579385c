"""What methods share whose server weighs its clients by their losses: the weights lambda, and how they ascend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, State
from fedmm.core.errors import require
from fedmm.core.layout import Layout
from fedmm.core.projections import Simplex
from fedmm.core.validation import not_negative, one_of, positive

Regulariser = Literal["none", "chi_square", "kl"]


@dataclass(frozen=True)
class AgnosticWeights(Algorithm):
    """Adds to a method the weights of its clients: min over omega, max over psi and lambda of sum lambda_i f_i.

    lambda is in the simplex, so that its maximum is the worst mixture of the clients. The method's own clients work on
    N lambda_i f_i, and their mean is as before. In lambda alone the sum is linear; in psi and lambda together it need
    not be concave where it is in psi, so that with an adversary a regulariser and a small gamma may be needed.

    ===================  ======  ====================
    argument             symbol  meaning
    ===================  ======  ====================
    lr_weights           gamma   step size of lambda
    regulariser                  what is taken off for weights that are not all 1 / N: ``none``, ``chi_square``, ``kl``
    regulariser_weight   s       how much: s (N / 2) ||lambda - 1 / N||^2, or s KL(lambda || 1 / N)
    (state)              lambda  ``weights`` of the server, 1 / N at the start
    ===================  ======  ====================

    server, beside the method's own:  v_i <- (N / m) f_i(z_0) of the m clients that were counted, 0 of others
             none        lambda <- the point of the simplex nearest to lambda + gamma v
             chi_square  the same with v_i - s (N lambda_i - 1)
             kl          lambda_i <- lambda_i^(1 - gamma s) exp(gamma v_i), over their sum
    """

    weighs_clients: ClassVar[bool] = True
    reports: ClassVar[tuple[str, ...]] = ("loss",)

    lr_weights: float = field(default=0.01, kw_only=True)
    regulariser: Regulariser = field(default="none", kw_only=True)
    regulariser_weight: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("lr_weights", self.lr_weights)
        one_of("regulariser", self.regulariser, ("none", "chi_square", "kl"))
        not_negative("regulariser_weight", self.regulariser_weight)
        require(
            self.regulariser != "none" or self.regulariser_weight == 0,
            "regulariser_weight must be 0 where regulariser is 'none'; set regulariser to 'chi_square' or 'kl'",
        )
        require(
            self.regulariser != "kl" or self.lr_weights * self.regulariser_weight <= 1,
            "lr_weights times regulariser_weight must be at most 1 with the regulariser 'kl'",
        )

    def structure(self) -> tuple[object, ...]:
        return (*super().structure(), self.regulariser)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        return Coefficients(
            super().coefficients(layout, t, rounds),
            lr_weights=layout.scalar(self.lr_weights),
            regulariser_weight=layout.scalar(self.regulariser_weight),
        )

    def init_per_client(self, clients: int, like: Tensor) -> State:
        return {"weights": like.new_full((*like.shape[:-1], clients), 1 / clients)}

    def importance(self, server: State) -> Tensor | None:
        return server["weights"].shape[-1] * server["weights"]

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        after = super().server_update(server, uploads, c)
        return {**after, "weights": self.ascended(server["weights"], uploads, c.lr_weights, c)}

    def ascended(self, weights: Tensor, uploads: Aggregated, rate: Tensor, c: Coefficients) -> Tensor:
        """lambda ``[..., clients]`` after a step of a rate along the losses that were reported."""
        assert uploads.counted is not None
        clients = weights.shape[-1]
        number = uploads.counted.sum(dim=-1, keepdim=True).clamp_min(1)
        ascent = clients / number * uploads.scalars["loss"]
        if self.regulariser == "kl":
            logs = (1 - rate * c.regulariser_weight) * weights.clamp_min(torch.finfo(weights.dtype).tiny).log()
            return torch.softmax(logs + rate * ascent, dim=-1)
        if self.regulariser == "chi_square":
            ascent = ascent - c.regulariser_weight * (clients * weights - 1)
        return Simplex().project(weights + rate * ascent)
