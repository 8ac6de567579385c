"""What algorithms share that weight their clients by their losses: the weights lambda, and how they ascend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, State
from fedmm.core.errors import require
from fedmm.core.layout import Layout
from fedmm.core.problem import holds_target
from fedmm.core.projections import Simplex
from fedmm.core.validation import not_negative, one_of, positive

Regulariser = Literal["none", "chi_square", "kl"]
Weighs = Literal["all", "target"]


@dataclass(frozen=True)
class AgnosticWeights(Algorithm):
    """Adds client weights to an algorithm: min over omega, max over psi and lambda of sum lambda_i f_i.

    lambda is in the simplex, so the maximum over it is the worst mixture of the clients. The algorithm's clients work
    on N lambda_i f_i and are averaged as before. The sum is linear in lambda, but even if it is concave in psi it need
    not be in psi and lambda together, so an adversary may require a regulariser and a small gamma.

    With ``weighs = "target"`` only the T clients that hold target rows are weighted; read T for N below. They work on
    T lambda_i f_i, and the others on f_i. A target's f_i is -nu times its domain loss; all are below 0 and only their
    differences mean anything, so they are measured from the mean of the targets that take part.

    ===================  ======  ====================
    argument             symbol  meaning
    ===================  ======  ====================
    lr_weights           gamma   step size of lambda
    regulariser                  the penalty on weights that are not all 1 / N: ``none``, ``chi_square``, ``kl``
    regulariser_weight   s       its strength: s (N / 2) ||lambda - 1 / N||^2, or s KL(lambda || 1 / N)
    weighs                       ``all`` clients, or those with ``target`` rows
    (state)              lambda  ``weights`` of the server, 1 / N at the start; of T targets, T / N times theirs
    ===================  ======  ====================

    server, beside the method's own:  v_i <- (N / m) f_i(z_0) of the m clients that were counted, 0 of others
             none        lambda <- the point of the simplex nearest to lambda + gamma v
             chi_square  the same with v_i - s (N lambda_i - 1)
             kl          lambda_i <- lambda_i^(1 - gamma s) exp(gamma v_i), over their sum
             target      v_i <- (T - 1) / (m - 1) (f_i(z_0) - their mean) of the m targets that were counted, 0 of
                         others; with fewer than two of them lambda stays
    """

    weighs_clients: ClassVar[bool] = True
    reports: ClassVar[tuple[str, ...]] = ("loss",)

    lr_weights: float = field(default=0.01, kw_only=True)
    regulariser: Regulariser = field(default="none", kw_only=True)
    regulariser_weight: float = field(default=0.0, kw_only=True)
    weighs: Weighs = field(default="all", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("lr_weights", self.lr_weights)
        one_of("regulariser", self.regulariser, ("none", "chi_square", "kl"))
        not_negative("regulariser_weight", self.regulariser_weight)
        one_of("weighs", self.weighs, ("all", "target"))
        require(
            self.regulariser != "none" or self.regulariser_weight == 0,
            "regulariser_weight must be 0 if regulariser is 'none'; set regulariser to 'chi_square' or 'kl'",
        )
        require(
            self.regulariser != "kl" or self.lr_weights * self.regulariser_weight <= 1,
            "lr_weights times regulariser_weight must be at most 1 with the regulariser 'kl'",
        )

    def structure(self) -> tuple[object, ...]:
        return (*super().structure(), self.regulariser, self.weighs)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        return Coefficients(
            super().coefficients(layout, t, rounds),
            lr_weights=layout.scalar(self.lr_weights),
            regulariser_weight=layout.scalar(self.regulariser_weight),
        )

    def require_clients(self, held: Mapping[str, str], weights: Mapping[str, float]) -> None:
        if self.weighs == "all":
            return
        targets = sorted(name for name, domains in held.items() if holds_target(domains))
        require(
            bool(targets),
            f"weighs = 'target' of {self.name} needs clients with target rows, and an objective that trains on them, "
            "such as dann; leave it at 'all' for labelled sites",
        )
        first = targets[0]
        for name in targets[1:]:
            require(
                held[name] == held[first],
                f"weighs = 'target' of {self.name} compares the targets' losses, and client {name!r} holds "
                f"{held[name]} where {first!r} holds {held[first]}; give them the same domains",
            )
            require(
                weights[name] == weights[first],
                f"weighs = 'target' of {self.name} compares the targets' losses, which are of unequal weight for "
                f"{name!r} and {first!r}; give all targets the same weight",
            )

    def init_per_client(self, clients: int, like: Tensor) -> State:
        return {"weights": like.new_full((*like.shape[:-1], clients), 1 / clients)}

    def importance(self, server: State) -> Tensor | None:
        return server["weights"].shape[-1] * server["weights"]

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        after = super().server_update(server, uploads, c)
        return {**after, "weights": self.ascended(server["weights"], uploads, c.lr_weights, c)}

    def ascended(self, weights: Tensor, uploads: Aggregated, rate: Tensor, c: Coefficients) -> Tensor:
        """Return the weights ``[..., clients]`` after a step of size ``rate`` along the reported losses."""
        assert uploads.counted is not None
        clients, loss = weights.shape[-1], uploads.scalars["loss"]
        if self.weighs == "all":
            number = uploads.counted.sum(dim=-1, keepdim=True).clamp_min(1)
            return self._step(weights, clients / number * loss, clients, rate, c)
        assert uploads.target is not None
        targets = uploads.target.sum(dim=-1, keepdim=True).to(weights.dtype)
        counted = uploads.counted & uploads.target
        number = counted.sum(dim=-1, keepdim=True).to(weights.dtype)
        mean = torch.where(counted, loss, 0.0).sum(dim=-1, keepdim=True) / number
        ascent = torch.where(counted, (targets - 1) / (number - 1) * (loss - mean), 0.0)
        share = targets / clients
        moved = share * self._step(weights / share, ascent, targets, rate, c, uploads.target)
        return torch.where(uploads.target & (number > 1), moved, weights)

    def _step(
        self,
        weights: Tensor,
        ascent: Tensor,
        number: Tensor | int,
        rate: Tensor,
        c: Coefficients,
        among: Tensor | None = None,
    ) -> Tensor:
        """Return lambda after a step, over ``number`` clients: those in ``among``, or all of them."""
        if self.regulariser == "kl":
            logs = (1 - rate * c.regulariser_weight) * weights.clamp_min(torch.finfo(weights.dtype).tiny).log()
            return torch.softmax(_of(among, logs + rate * ascent), dim=-1)
        if self.regulariser == "chi_square":
            ascent = ascent - c.regulariser_weight * (number * weights - 1)
        return Simplex().project(_of(among, weights + rate * ascent))


def _of(among: Tensor | None, values: Tensor) -> Tensor:
    """Return the values, with -inf outside ``among``, which a softmax and the simplex both turn into weights of 0."""
    return values if among is None else torch.where(among, values, -torch.inf)
