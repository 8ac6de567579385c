"""Fully connected heads and how weights begin."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def mlp(inputs: int, hidden: Sequence[int], outputs: int | None, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with ReLU (and dropout) between them; ``outputs=None`` ends on the last hidden layer's ReLU."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        inputs = width
    if outputs is not None:
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def truncated_normal(module: nn.Module) -> None:
    """The start of the paper's published program: weights normal(0, 0.1) cut at two sigma, biases 0.1."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            if layer.bias is not None:
                nn.init.constant_(layer.bias, 0.1)
