"""Losses on target rows alone: each client computes its own on its batch, at no communication cost.

With p the softmax of a row's logits and w the row's weight, they are functions of the target rows of one batch. Rows of
weight 0 are padding, and a client without target rows has loss 0. All act on the last axes, allow any leading ones,
have no data-dependent control flow (so that a CUDA graph can capture them), and have finite gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, unknown
from fedmm.core.validation import positive


class TargetLoss(ABC):
    """Base class of all losses on target rows."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def __call__(self, logits: Tensor, weight: Tensor) -> Tensor:
        """Return the loss of a batch, ``[...]``.

        logits: ``[..., rows, classes]``. weight: ``[..., rows]``, 0 for source rows and padding.
        """
        some = weight.sum(dim=-1) > 0
        loss = self.of_rows(logits, torch.where(some.unsqueeze(-1), weight, 1.0))
        return torch.where(some, loss, 0.0)

    @abstractmethod
    def of_rows(self, logits: Tensor, weight: Tensor) -> Tensor:
        """Return the loss ``[...]`` of rows of which at least one has a positive weight."""


@dataclass(frozen=True)
class NoTargetLoss(TargetLoss):
    """No loss on target rows."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "no term on target rows"

    def of_rows(self, logits: Tensor, weight: Tensor) -> Tensor:
        return torch.zeros_like(weight[..., 0])


@dataclass(frozen=True)
class MinimumClassConfusion(TargetLoss):
    """Minimum class confusion (Jin et al., 2020): how much the classes are confused with each other.

    With p = softmax(logits / temperature) and row weights w (1 + exp(-H(p))), which are not differentiated, the class
    correlation is C_jk = sum over rows of w p_j p_k. Its rows are normalised to sum 1; the loss is the sum of the
    off-diagonal entries over the number of classes. Since p sums to 1, this equals the mean over classes j of sum(w p_j
    (1 - p_j)) / sum(w p_j), computed in logarithms: a class that no row predicts counts 1.

    temperature: of the softmax; above 1 it keeps overconfident rows from hiding the confusion.
    """

    name: ClassVar[str] = "mcc"
    summary: ClassVar[str] = "minimum class confusion: how often two classes are both likely for a row"

    temperature: float = 2.5

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)

    def of_rows(self, logits: Tensor, weight: Tensor) -> Tensor:
        log_p = (logits / self.temperature).log_softmax(dim=-1)
        certainty = 1.0 + (log_p.exp() * log_p).sum(dim=-1).exp()
        share = (log_p + (weight * certainty.detach()).log().unsqueeze(-1)).softmax(dim=-2)
        return (share * -torch.expm1(log_p)).sum(dim=-2).mean(dim=-1)


@dataclass(frozen=True)
class InformationMaximisation(TargetLoss):
    """The mean entropy of the predictions minus the entropy of their mean, as in SHOT (Liang et al., 2020).

    This is minus the mutual information of row and prediction: lowest for confident rows and equally frequent classes.
    """

    name: ClassVar[str] = "im"
    summary: ClassVar[str] = "information maximisation: confident predictions, and all classes equally often"

    def of_rows(self, logits: Tensor, weight: Tensor) -> Tensor:
        share = weight / weight.sum(dim=-1, keepdim=True)
        log_p = logits.log_softmax(dim=-1)
        log_mean = (log_p + share.log().unsqueeze(-1)).logsumexp(dim=-2)
        entropies = -(log_p.exp() * log_p).sum(dim=-1)
        return (share * entropies).sum(dim=-1) + (log_mean.exp() * log_mean).sum(dim=-1)


@dataclass(frozen=True)
class BatchNuclearNorm(TargetLoss):
    """Minus the nuclear norm of the predictions ``[rows, classes]`` over the number of rows (Cui et al., 2020).

    A row of weight w counts w times. This is the paper's scale; its authors' program takes the mean of the singular
    values, which is larger by rows / min(rows, classes).

    Singular values would need a decomposition that a CUDA graph cannot capture. Instead the norm is the inner product
    of the predictions with their polar factor (see :func:`polar_factor`), held fixed in the gradient, which gives the
    norm's own gradient. The norm comes out too small by at most 1e-5 of the Frobenius norm per class. A singular value
    below 1e-4 of the Frobenius norm has between none and all of its gradient; at 0, where the norm has a kink, it has
    none.
    """

    name: ClassVar[str] = "bnm"
    summary: ClassVar[str] = "batch nuclear norm maximisation: confident and diverse predictions"

    def of_rows(self, logits: Tensor, weight: Tensor) -> Tensor:
        rows = logits.softmax(dim=-1) * weight.sqrt().unsqueeze(-1)
        norm = (polar_factor(rows) * rows).sum(dim=(-2, -1))
        return -norm / weight.sum(dim=-1)


_ITERATIONS = 26


@torch.no_grad()
def polar_factor(a: Tensor) -> Tensor:
    """Return U V' of a = U S V', ``[..., rows, columns]``, by Newton-Schulz iterations; zeros of S stay 0.

    From a over its Frobenius norm, x <- x (3 - x'x) / 2 takes each singular value from (0, 1] towards 1, small ones by
    a factor of 1.5 per iteration.
    """
    norm = torch.linalg.matrix_norm(a, keepdim=True)
    x = a / torch.where(norm > 0, norm, 1.0)
    for _ in range(_ITERATIONS):
        x = 1.5 * x - 0.5 * (x @ (x.mT @ x))
    return x


TARGET_LOSSES: dict[str, type[TargetLoss]] = {
    each.name: each for each in (NoTargetLoss, MinimumClassConfusion, InformationMaximisation, BatchNuclearNorm)
}


def as_target_loss(name: str, value: object) -> TargetLoss:
    """Return a target loss given as an instance or by its name in ``TARGET_LOSSES``; ``name`` is that of the option."""
    if isinstance(value, str):
        if value not in TARGET_LOSSES:
            raise unknown(name, value, TARGET_LOSSES)
        return TARGET_LOSSES[value]()
    if not isinstance(value, TargetLoss):
        got = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
        raise FedmmError(f"{name} must be a target loss such as fedmm.MinimumClassConfusion(), or its name, not {got}")
    return value
