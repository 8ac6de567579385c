"""Views that crop and flip pictures: drawn anew in every local step of training, centred in evaluation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmm.core.errors import require, unknown
from fedmm.core.problem import View, WholeRows
from fedmm.core.seeding import hashed
from fedmm.core.validation import at_least, flag

_DRAWS = 3  # per row: top, left, flip


@dataclass(frozen=True)
class CropAndFlip:
    """Square crops of pictures ``[..., rows, C, H, W]``: in training at random positions, mirrored half of the time.

    size: side in pixels. flip: whether to mirror. A row's position and mirroring are a function of its batch's key and
    its index in the batch; evaluation and prediction use the unmirrored centre crop.
    """

    name: ClassVar[str] = "crop_and_flip"

    size: int
    flip: bool = True

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        flag("flip", self.flip)

    @property
    def random(self) -> bool:
        """True: training crops are random."""
        return True

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return ``(C, size, size)``; raise FedmmError if rows are not pictures, or smaller."""
        require(len(stored) == 3, f"only pictures [channels, height, width] can be cropped, not rows of shape {stored}")
        require(
            min(stored[1:]) >= self.size,
            f"size must be at most {min(stored[1:])} to be cropped from rows of shape {stored}, not {self.size}",
        )
        return (stored[0], self.size, self.size)

    def train(self, x: Tensor, key: Tensor) -> Tensor:
        """Crop ``[..., rows, C, H, W]`` to ``[..., rows, C, size, size]``; key: int64 ``[...]``."""
        *_, rows, channels, height, width = x.shape
        place = torch.arange(rows * _DRAWS, device=x.device).view(rows, _DRAWS)
        top, left, mirror = hashed(key[..., None, None], place).unsqueeze(-1).unbind(dim=-2)
        along = torch.arange(self.size, device=x.device)
        down = top % (height - self.size + 1) + along
        across = torch.where(mirror % 2 == 1, self.size - 1 - along, along) if self.flip else along
        across = left % (width - self.size + 1) + across
        pixels = (down.unsqueeze(-1) * width + across.unsqueeze(-2)).flatten(-2).unsqueeze(-2)
        cut = x.flatten(-2).gather(-1, pixels.expand(*x.shape[:-2], -1))
        return cut.view(*x.shape[:-3], channels, self.size, self.size)

    def evaluate(self, x: Tensor) -> Tensor:
        """Return the centre crop, ``[..., rows, C, size, size]``."""
        top, left = ((side - self.size) // 2 for side in x.shape[-2:])
        return x[..., top : top + self.size, left : left + self.size]


VIEWS: dict[str, type[WholeRows] | type[CropAndFlip]] = {view.name: view for view in (WholeRows, CropAndFlip)}
"""The views that can be stored with a model."""


def view_table(view: View) -> dict[str, Any] | None:
    """Return a view of ``VIEWS`` as plain values with its name; None for any other view."""
    if not isinstance(view, WholeRows | CropAndFlip):
        return None
    return {"name": view.name, **asdict(view)}


def view_from(table: dict[str, Any]) -> View:
    """Rebuild the view from :func:`view_table`."""
    name = str(table.get("name"))
    if name not in VIEWS:
        raise unknown("view", name, VIEWS)
    return VIEWS[name](**{option: value for option, value in table.items() if option != "name"})
