"""Two moons, a minimal example of domain shift: the target is the source rotated about its centre."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.seeding import key
from fedmm.core.validation import at_least, not_negative, within
from fedmm.data.domains import DomainPair, Labelled

CENTRE = (0.5, 0.25)
"""The point about which scikit-learn's two moons are mirror images."""

_MOST_ROWS = 100_000_000


@dataclass(frozen=True)
class Moons:
    """x ``[rows, 2]`` float32, centred; the target is turned anticlockwise by ``angle`` degrees.

    rows: training rows per domain; test_rows: test rows per domain. All are drawn independently.
    validation_rows: source rows for choosing hyperparameters, neither trained nor tested on.
    noise: standard deviation of the Gaussian noise on each coordinate; a moon has radius 1.
    """

    name: ClassVar[str] = "moons"
    summary: ClassVar[str] = "two moons in the plane, the target turned about their centre"

    rows: int = 1000
    noise: float = 0.1
    angle: float = 35.0
    test_rows: int = 400
    seed: int = 0
    validation_rows: int = 0

    def __post_init__(self) -> None:
        for option, rows in (("rows", self.rows), ("test_rows", self.test_rows)):
            at_least(option, rows, 2)
        at_least("validation_rows", self.validation_rows, 0)
        for option in ("rows", "test_rows", "validation_rows"):
            rows = getattr(self, option)
            require(rows <= _MOST_ROWS, f"{option} must be at most {_MOST_ROWS}, not {rows}")
        not_negative("noise", self.noise)
        within("angle", self.angle, -360.0, 360.0)
        at_least("seed", self.seed, 0)

    def load(self) -> DomainPair:
        kept = self.validation_rows
        return DomainPair(
            source=self._draw("source", self.rows, 0.0),
            target=self._draw("target", self.rows, self.angle),
            source_test=self._draw("source_test", self.test_rows, 0.0),
            target_test=self._draw("target_test", self.test_rows, self.angle),
            class_names=("upper", "lower"),
            source_validation=self._draw("source_validation", kept, 0.0) if kept else None,
        )

    def _draw(self, part: str, rows: int, angle: float) -> Labelled:
        from sklearn.datasets import make_moons  # noqa: PLC0415 - slow to import

        state = key(self.seed, "moons", part) % 2**32
        points, y = make_moons(rows, noise=self.noise, random_state=state)
        x = (torch.from_numpy(points) - torch.tensor(CENTRE, dtype=torch.float64)) @ _turn(angle)
        return Labelled(x.to(torch.float32), torch.from_numpy(y).long())


def _turn(angle: float) -> Tensor:
    """Return the matrix ``[2, 2]`` that rotates rows anticlockwise when multiplied from the right: x @ matrix."""
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
