"""Which updates of a stack's clients are counted, and means over those that are."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmm.core.aggregation import CoordinateMedian, Groups
from fedmm.core.algorithm import State
from fedmm.core.federation import Terms

COUNTED, ABSENT, NOT_FINITE, TOO_LONG, UNUSUAL = range(5)
REASONS = {
    NOT_FINITE: "its update is not finite",
    TOO_LONG: "the norm of its update is above the bound",
    UNUSUAL: "the norm of its update is unusual in its group",
}


def judged(terms: Terms, uploads: State, z_0: Tensor, working: Tensor, groups: Groups) -> Tensor:
    """What becomes of each client's update, uint8 ``[replicas, clients]``, as an inbox would judge it.

    uploads: ``[replicas, clients, size]``; z_0: ``[replicas, 1, size]``; working: bool, who takes part.
    """
    verdict = torch.full_like(working, COUNTED, dtype=torch.uint8).masked_fill_(~working, ABSENT)
    if not terms.may_refuse:
        return verdict

    def refuse(bad: Tensor, why: int) -> None:
        verdict.masked_fill_((verdict == COUNTED) & bad, why)

    if terms.on_bad_update == "skip":
        for vectors in uploads.values():
            refuse(~vectors.norm(dim=-1).isfinite(), NOT_FINITE)
    norm = (uploads["z"] - z_0).norm(dim=-1)
    if terms.max_update_norm > 0:
        refuse(norm > terms.max_update_norm, TOO_LONG)
    if terms.max_update_ratio > 0:
        unusual = torch.zeros_like(working)
        for group in range(groups.most):
            members = (groups.of == group) & (verdict == COUNTED)
            median = CoordinateMedian().centre(norm.unsqueeze(-1), members)
            unusual |= members & (norm > terms.max_update_ratio * median)
        refuse(unusual, UNUSUAL)
    return verdict


def mean_over(values: Tensor, chosen: Tensor, dim: int = -1) -> Tensor:
    """The mean of the chosen values, 0 where there are none; those that are not chosen may be anything."""
    number = chosen.sum(dim=dim).clamp_min(1)
    return torch.where(chosen, values, 0.0).sum(dim=dim) / number


def root_mean_square(vectors: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Over clients, all or the chosen ones: ``[replicas, clients, size]`` to ``[replicas]``."""
    squares = vectors.square().sum(dim=-1)
    return (squares.mean(dim=-1) if chosen is None else mean_over(squares, chosen)).sqrt()
