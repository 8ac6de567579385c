"""Sums in another order, as another processor's libraries take them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.nn import functional


@contextmanager
def summing_backwards() -> Iterator[None]:
    """Linear layers add up their products from the last to the first."""
    linear = functional.linear

    def backwards(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x.flip(-1), weight.flip(-1), bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "linear", backwards)
        yield


def largest_difference(dtype: torch.dtype) -> float:
    """Of a linear layer like those of the tests, between the two orders."""
    draw = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(64, 12).to(dtype)
    x = torch.randn(300, 64, generator=draw, dtype=torch.float64).to(dtype)
    with torch.no_grad():
        forwards = layer(x)
        with summing_backwards():
            return float((layer(x) - forwards).abs().max())
