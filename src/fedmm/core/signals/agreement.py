"""Agreement between predictions, of two models or of neighbouring rows, from counts."""

from __future__ import annotations

import torch
from torch import Tensor


def count_pairs(first: Tensor, second: Tensor, classes: int) -> Tensor:
    """Count how often each pair of classes was predicted, ``[classes, classes]``; counts of several clients add up."""
    return torch.bincount(first * classes + second, minlength=classes**2).view(classes, classes)


def kappa(pairs: Tensor) -> float:
    """Return Cohen's kappa of counted pairs: 1 for full agreement, 0 for no more than by chance.

    It is 0 if only one class was predicted: such predictions agree, but carry no information.
    """
    shares = pairs.double() / pairs.sum().clamp(min=1)
    chance = float((shares.sum(0) * shares.sum(1)).sum())
    return (float(shares.diagonal().sum()) - chance) / (1.0 - chance) if chance < 1.0 else 0.0


def find_neighbours(x: Tensor, many: int) -> Tensor:
    """Return the ``many`` rows nearest to each row (or all others if fewer) by Euclidean distance, ``[rows, many]``."""
    flat = x.flatten(1).double()
    apart = torch.cdist(flat, flat).fill_diagonal_(float("inf"))
    return apart.topk(min(many, max(0, len(flat) - 1)), dim=1, largest=False).indices
