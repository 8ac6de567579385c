"""How stored rows are shown to a network: as they are, or cropped and flipped anew in every local step of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor


class View(Protocol):
    """A function of stored rows, the same on every engine and device."""

    @property
    def random(self) -> bool:
        """Whether the key matters in training."""

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a row as the network sees it."""

    def train(self, x: Tensor, key: Tensor) -> Tensor:
        """Rows ``[..., rows, *stored]`` in training, drawn from the keys int64 ``[...]`` of their batches."""

    def evaluate(self, x: Tensor) -> Tensor:
        """Rows ``[..., rows, *stored]`` for measuring and predicting; nothing is random."""


@dataclass(frozen=True)
class WholeRows:
    """Rows as they are stored."""

    name: ClassVar[str] = "whole_rows"

    @property
    def random(self) -> bool:
        return False

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        return stored

    def train(self, x: Tensor, key: Tensor) -> Tensor:
        return x

    def evaluate(self, x: Tensor) -> Tensor:
        return x
