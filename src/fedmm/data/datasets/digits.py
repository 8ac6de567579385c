"""scikit-learn's scanned digits as two domains: rotated, or blended with photographs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedmm.core.errors import FedmmError, require
from fedmm.core.seeding import key, permutation, uniform
from fedmm.core.validation import at_least, one_of, within
from fedmm.data.domains import DomainPair, Labelled

DIGITS = 1797
"""The number of digits in scikit-learn."""

TURN = 15.0
"""Largest rotation of a copy, in degrees."""
SHIFT = 0.1
"""Largest shift of a copy, as a share of half the image."""
SCALE = (0.8, 1.0)
"""Smallest and largest size of a copy, as a share of the image."""

PHOTOGRAPH_SIDE = 427
"""The shorter side of scikit-learn's photographs: no patch can be larger."""

_MOST_VALUES = 4_000_000_000  # of a domain's training rows, 16 GB

_OPTIONS_OF = {"turned": ("angle",), "blended": ("size", "copies")}


@dataclass(frozen=True)
class Digits:
    """Both domains show the same training digits and the same test digits; only their appearance differs.

    kind: ``turned``, x ``[rows, 1, 8, 8]``: the target is turned anticlockwise by ``angle`` degrees.
        ``blended``, x ``[rows, 3, size, size]``, a small MNIST-M: each training digit in ``copies`` random poses and
        each test digit in one; the source shows it in grey, the target as |patch of a photograph - digit|.
    test_rows: digits kept for testing; no copy of them is in the training rows.
    validation_rows: further digits kept from training, shown as in the source, to choose hyperparameters by.
    seed: selects the digits kept, the poses and the patches.

    All x are float32 in [0, 1].
    """

    name: ClassVar[str] = "digits"
    summary: ClassVar[str] = "scikit-learn's 1,797 scanned digits, the target turned or blended with photographs"

    kind: Literal["turned", "blended"] = "turned"
    angle: float = 30.0
    test_rows: int = 400
    seed: int = 0
    size: int = 28
    copies: int = 4
    validation_rows: int = 0

    def __post_init__(self) -> None:
        one_of("kind", self.kind, tuple(_OPTIONS_OF))
        within("angle", self.angle, -360.0, 360.0)
        at_least("test_rows", self.test_rows, 1)
        at_least("validation_rows", self.validation_rows, 0)
        require(
            self.test_rows < DIGITS, f"test_rows must be below {DIGITS}, the number of digits, not {self.test_rows}"
        )
        left = DIGITS - self.test_rows
        require(
            self.validation_rows < left,
            f"validation_rows must be below {left}, the digits left by test_rows, not {self.validation_rows}",
        )
        at_least("seed", self.seed, 0)
        at_least("size", self.size, 8)
        require(self.size <= PHOTOGRAPH_SIDE, f"size must be at most {PHOTOGRAPH_SIDE}, not {self.size}")
        at_least("copies", self.copies, 1)
        most = _MOST_VALUES // (DIGITS * 3 * self.size**2)
        require(self.copies <= most, f"copies must be at most {most} at size {self.size}, not {self.copies}")
        for kind, options in _OPTIONS_OF.items():
            for option in options:
                require(
                    kind == self.kind or getattr(self, option) == getattr(type(self), option),
                    f"{option} is an option of kind {kind!r}; leave it out with kind {self.kind!r}",
                )

    def load(self) -> DomainPair:
        images, labels = scans()
        order = permutation(key(self.seed, "digits", "test"), DIGITS)
        kept = self.test_rows + self.validation_rows
        test, validation, train = (
            part.sort().values for part in (order[: self.test_rows], order[self.test_rows : kept], order[kept:])
        )

        def seen(digits: Tensor, copies: int) -> tuple[Labelled, Labelled]:
            if self.kind == "turned":
                return self._turned(images[digits], labels[digits])
            return self._blended(images, labels, digits, copies)

        return DomainPair(
            *seen(train, self.copies),
            *seen(test, 1),
            class_names=tuple("0123456789"),
            source_validation=seen(validation, 1)[0] if self.validation_rows else None,
        )

    def _turned(self, x: Tensor, y: Tensor) -> tuple[Labelled, Labelled]:
        from scipy.ndimage import rotate  # noqa: PLC0415 - slow to import

        turned = rotate(x.numpy(), self.angle, axes=(-2, -1), reshape=False, order=1)
        return Labelled(x, y), Labelled(torch.from_numpy(turned).clamp(0.0, 1.0), y)

    def _blended(self, images: Tensor, labels: Tensor, digits: Tensor, copies: int) -> tuple[Labelled, Labelled]:
        digit = digits.repeat(copies)
        position = digit + DIGITS * torch.arange(copies).repeat_interleave(len(digits))
        y = labels[digit]
        grey = pose_images(images[digit], position, size=self.size, seed=self.seed).repeat(1, 3, 1, 1)
        patch = patches(photographs(), position, size=self.size, seed=self.seed)
        return Labelled(grey, y), Labelled((patch - grey).abs(), y)


def scans() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits: float32 ``[1797, 1, 8, 8]`` in [0, 1], and int64 labels ``[1797]``."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import

    bunch = load_digits()
    return torch.from_numpy(bunch.images / 16.0).to(torch.float32).unsqueeze(1), torch.from_numpy(bunch.target).long()


def pose_images(images: Tensor, position: Tensor, *, size: int, seed: int) -> Tensor:
    """Give each image ``[rows, 1, h, w]`` a small random rotation, shift and scale: ``[rows, 1, size, size]``.

    position: int64 ``[rows]``, the index that each row's pose is drawn for.
    """

    def draw(what: str, low: float, high: float) -> Tensor:
        return low + (high - low) * uniform(key(seed, "pose", what), position)

    turn = draw("turn", -math.radians(TURN), math.radians(TURN))
    across, down, scale = draw("across", -SHIFT, SHIFT), draw("down", -SHIFT, SHIFT), draw("scale", *SCALE)
    cos, sin = turn.cos() / scale, turn.sin() / scale
    # affine_grid takes the inverse map, from output to input coordinates.
    rows = [cos, -sin, -(cos * across - sin * down), sin, cos, -(sin * across + cos * down)]
    grid = affine_grid(torch.stack(rows, dim=-1).reshape(-1, 2, 3), [len(images), 1, size, size], align_corners=False)
    return grid_sample(images, grid, align_corners=False).clamp(0.0, 1.0)


def patches(photographs: Tensor, position: Tensor, *, size: int, seed: int) -> Tensor:
    """Cut a random square of a random photograph for each row: float32 ``[rows, 3, size, size]`` in [0, 1].

    photographs: uint8 ``[n, h, w, 3]``. position: int64 ``[rows]``, the index that each row's patch is drawn for.
    """

    def draw(what: str, choices: int) -> Tensor:
        return (uniform(key(seed, "patch", what), position) * choices).long()[:, None, None]

    count, height, width, _ = photographs.shape
    offset = torch.arange(size)
    top = draw("top", height - size + 1) + offset[:, None]
    left = draw("left", width - size + 1) + offset
    return photographs[draw("photograph", count), top, left].permute(0, 3, 1, 2).to(torch.float32) / 255.0


def photographs() -> Tensor:
    """Return the two photographs that ship with scikit-learn: uint8 ``[2, 427, 640, 3]``."""
    from sklearn.datasets import load_sample_images  # noqa: PLC0415 - slow to import

    try:
        return torch.from_numpy(np.stack(load_sample_images().images))
    except ImportError as error:
        raise FedmmError("blended digits need Pillow to read scikit-learn's photographs: pip install pillow") from error
