"""Labels as text, and the numbers of their classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

UNLABELLED = -1
"""The label of a row whose class is not known."""
UNKNOWN = -2
"""The label of a row whose class is none of those that a model knows."""


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once: whole numbers by their value, before other names in alphabetical order."""
    return tuple(sorted(set(names), key=lambda name: (not _is_whole(name), int(name) if _is_whole(name) else 0, name)))


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and name.isascii() and len(name) < 20


def number_labels(names: Iterable[str], class_names: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """The numbers of classes, int64 ``[rows]``, and the names that are none of them, whose rows are ``UNKNOWN``.

    An empty name is that of no class: its row is ``UNLABELLED``.
    """
    number = {"": UNLABELLED} | {name: number for number, name in enumerate(class_names)}
    given = list(names)
    strange = sort_names(name for name in given if name not in number)
    return torch.tensor([number.get(name, UNKNOWN) for name in given], dtype=torch.int64), strange
