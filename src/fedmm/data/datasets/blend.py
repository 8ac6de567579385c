"""How MNIST-M is made from MNIST: digits at random poses, difference-blended with patches of photographs.

Every draw is a function of (seed, what it is for, position), so a row's pixels do not depend on which rows are made
with it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedmm.core.errors import FedmmError
from fedmm.core.seeding import key, uniform

TURN = 15.0
"""Largest rotation of a copy, in degrees."""
SHIFT = 0.1
"""Largest shift of a copy, as a share of half the image."""
SCALE = (0.8, 1.0)
"""Smallest and largest size of a copy, as a share of the image."""

PHOTOGRAPH_SIDE = 427
"""The shorter side of scikit-learn's photographs: no patch can be larger."""


def posed(images: Tensor, position: Tensor, *, size: int, seed: int) -> Tensor:
    """Each image ``[rows, 1, h, w]`` at its own small rotation, shift and scale, as ``[rows, 1, size, size]``.

    position: int64 ``[rows]``, what the row's pose is drawn for.
    """

    def draw(what: str, low: float, high: float) -> Tensor:
        return low + (high - low) * uniform(key(seed, "pose", what), position)

    turn = draw("turn", -math.radians(TURN), math.radians(TURN))
    across, down, scale = draw("across", -SHIFT, SHIFT), draw("down", -SHIFT, SHIFT), draw("scale", *SCALE)
    cos, sin = turn.cos() / scale, turn.sin() / scale
    # affine_grid wants the inverse map, from a place in the new image to the place it shows.
    rows = [cos, -sin, -(cos * across - sin * down), sin, cos, -(sin * across + cos * down)]
    grid = affine_grid(torch.stack(rows, dim=-1).reshape(-1, 2, 3), [len(images), 1, size, size], align_corners=False)
    return grid_sample(images, grid, align_corners=False).clamp(0.0, 1.0)


def patches(photographs: Tensor, position: Tensor, *, size: int, seed: int) -> Tensor:
    """A random square of a random photograph for each row: float32 ``[rows, 3, size, size]`` in [0, 1].

    photographs: uint8 ``[n, h, w, 3]``. position: int64 ``[rows]``, what the row's patch is drawn for.
    """

    def draw(what: str, choices: int) -> Tensor:
        return (uniform(key(seed, "patch", what), position) * choices).long()[:, None, None]

    count, height, width, _ = photographs.shape
    offset = torch.arange(size)
    top = draw("top", height - size + 1) + offset[:, None]
    left = draw("left", width - size + 1) + offset
    return photographs[draw("photograph", count), top, left].permute(0, 3, 1, 2).to(torch.float32) / 255.0


def photographs() -> Tensor:
    """The two photographs that ship inside scikit-learn: uint8 ``[2, 427, 640, 3]``."""
    from sklearn.datasets import load_sample_images  # noqa: PLC0415 - slow to import

    try:
        return torch.from_numpy(np.stack(load_sample_images().images))
    except ImportError as error:
        raise FedmmError("blended digits need Pillow to read scikit-learn's photographs: pip install pillow") from error
