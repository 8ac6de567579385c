"""What is measured of a classifier on some rows, from sums over them: sums of parts add up to those of the whole.

So rows can be gone over batch by batch, or stay at clients that each send their sums.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedmm.core.objective import cross_entropies


class Measure(Protocol):
    """A function of sums over rows."""

    def sums(self, logits: Tensor, y: Tensor) -> Tensor:
        """Float64 ``[..., k]`` of logits ``[..., rows, classes]`` and labels int64 ``[..., rows]``.

        Measures without labels do not look at y.
        """

    def value(self, sums: Tensor, rows: int) -> Tensor:
        """The measure ``[...]``, from sums ``[..., k]`` over so many rows."""


class Accuracy:
    """The share of rows whose predicted class is their label."""

    def sums(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.argmax(dim=-1) == y).double().sum(dim=-1, keepdim=True)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        return sums.squeeze(-1) / rows


class Risk:
    """The mean cross entropy, in nats."""

    def sums(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropies(logits, y).double().sum(dim=-1, keepdim=True)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        return sums.squeeze(-1) / rows


class Entropy:
    """The mean entropy of a prediction, in nats; no labels are needed."""

    def sums(self, logits: Tensor, y: Tensor) -> Tensor:
        return _entropies(logits).sum(dim=-1, keepdim=True)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        return sums.squeeze(-1) / rows


class Information:
    """The entropy of the mean prediction less the mean entropy of a prediction, in nats; no labels are needed.

    It is high where predictions are sure of themselves and yet differ from row to row, at most log(classes).
    """

    def sums(self, logits: Tensor, y: Tensor) -> Tensor:
        probabilities = logits.double().softmax(dim=-1).sum(dim=-2)
        return torch.cat([probabilities, _entropies(logits).sum(dim=-1, keepdim=True)], dim=-1)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        mean = sums[..., :-1] / rows
        return -torch.xlogy(mean, mean).sum(dim=-1) - sums[..., -1] / rows


def _entropies(logits: Tensor) -> Tensor:
    """The entropy of each row's prediction, ``[..., rows]``."""
    logarithms = logits.double().log_softmax(dim=-1)
    return -(logarithms.exp() * logarithms).sum(dim=-1)
