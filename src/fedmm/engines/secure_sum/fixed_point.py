"""Vectors as whole multiples of a small step, modulo 2^64: their sums are exact, in whatever order they are taken."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.errors import require

Codes = NDArray[np.uint64]

STEP = 2.0**-40
"""What a coordinate is rounded to: less than the rounding of float32 for all but the smallest."""
LARGEST = 2.0**14
"""The largest coordinate of an update: :data:`fedmm.core.federation.MOST_SUMMED` of them stay below 2^63 steps."""


def encode(vector: Tensor) -> Codes:
    """The codes of a vector; one that is not finite or too large has none."""
    wide = vector.detach().cpu().double()
    require(bool(wide.isfinite().all()), "its update is not finite, and cannot be part of a sum")
    largest = float(wide.abs().amax()) if len(wide) else 0.0
    require(
        largest <= LARGEST, f"its update has a coordinate of {largest:.4g}, above {LARGEST:g}, and cannot be summed"
    )
    codes: Codes = (wide / STEP).round().to(torch.int64).numpy().view(np.uint64)
    return codes


def decode(codes: Codes) -> Tensor:
    """The float64 vector of these codes, or of their sum."""
    return torch.from_numpy(codes.view(np.int64).astype(np.float64)) * STEP
