"""Pictures sorted into one folder for each class: two such domains, and a share of every class held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedmm.core.checks import at_least, within
from fedmm.core.errors import require
from fedmm.core.seeding import key, permutation
from fedmm.data.domains import Labelled
from fedmm.data.images import squares
from fedmm.data.sources import StoredFile


@dataclass(frozen=True)
class ClassFolders:
    """Files ``.../class/picture`` below ``folder``."""

    folder: Path
    files: tuple[StoredFile, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Sorted."""
        return tuple(sorted({_class(file) for file in self.files}))

    def load(self, class_names: Sequence[str], size: int) -> Labelled:
        """All pictures as squares, uint8 ``[files, 3, size, size]``, labelled by the place of their class."""
        number = {name: number for number, name in enumerate(class_names)}
        labels = torch.tensor([number[_class(file)] for file in self.files])
        return Labelled(squares(self.folder, self.files, size), labels)


def _class(file: StoredFile) -> str:
    return file.path.split("/")[-2]


def require_sizes(image_size: int, stored_size: int, held_out: float) -> None:
    """Refuse what no data set of pictures can do."""
    at_least("image_size", image_size, 1)
    at_least("stored_size", stored_size, 1)
    require(
        image_size <= stored_size <= 4096,
        f"stored_size must be between image_size = {image_size} and 4096, not {stored_size}",
    )
    within("held_out", held_out, 0.0, 1.0)
    require(0.0 < held_out < 1.0, f"held_out must be above 0 and below 1, not {held_out:g}")


def hold_out(rows: Labelled, share: float, seed: int) -> tuple[Labelled, Labelled]:
    """Rows to train on and rows held out, in their order: nearly the same share of every class.

    One row at least of each class is held out, and one at least is not; a class of one row is trained on.
    """
    out = torch.zeros(len(rows.y), dtype=torch.bool)
    for label in sorted(set(rows.y.tolist())):
        members = (rows.y == label).nonzero().squeeze(1)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        out[members[permutation(key(seed, "held_out", label), len(members))[:count]]] = True
    require(bool(out.any()), "no picture of the source can be held out: every class has only one")
    return _chosen(rows, ~out), _chosen(rows, out)


def _chosen(rows: Labelled, which: Tensor) -> Labelled:
    return Labelled(rows.x[which], rows.y[which])
