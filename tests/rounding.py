"""Sums in a different order, as another processor's libraries may compute them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.nn import functional


@contextmanager
def summing_backwards() -> Iterator[None]:
    """Make linear layers sum their products from last to first."""
    linear = functional.linear

    def backwards(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x.flip(-1), weight.flip(-1), bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "linear", backwards)
        yield


def largest_difference(dtype: torch.dtype) -> float:
    """Return how far the two orders differ for a linear layer like those of the tests."""
    draw = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(64, 12).to(dtype)
    x = torch.randn(300, 64, generator=draw, dtype=torch.float64).to(dtype)
    with torch.no_grad():
        forwards = layer(x)
        with summing_backwards():
            return float((layer(x) - forwards).abs().max())
