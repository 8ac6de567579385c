"""Your own pictures: a folder with a folder of pictures for each class, for each domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedmm.core.checks import at_least, flag
from fedmm.core.errors import FedmmError, require
from fedmm.core.views import View, WholeRows
from fedmm.data.class_folders import ClassFolders, found_in, hold_out, require_sizes
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.inputs import ImageInput
from fedmm.data.views import CropAndFlip


@dataclass(frozen=True)
class ImageFolder:
    """Pictures of two domains, uint8 ``[rows, 3, size, size]``; hidden files are skipped.

    source: a folder with one folder of pictures for each class.
    target: the same; or a folder of pictures whose classes are not known.
    target_test: a folder like the source's to test on; without it the target's own pictures are, where their classes
        are known.
    image_size, stored_size, held_out, seed: as in Office-31.
    augment: False shows the centre of every picture in training too.
    """

    name: ClassVar[str] = "image_folder"
    summary: ClassVar[str] = "your own pictures: a source and a target folder of class folders"

    source: str = ""
    target: str = ""
    target_test: str = ""
    image_size: int = 224
    stored_size: int = 256
    held_out: float = 0.1
    augment: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require_sizes(self.image_size, self.stored_size, self.held_out)
        flag("augment", self.augment)
        at_least("seed", self.seed, 0)

    def load(self) -> DomainPair:
        source, target = _found("source", self.source), _found("target", self.target)
        test = _found("target_test", self.target_test) if self.target_test else target
        classes = source.class_names
        require(bool(classes), f"source {self.source} has no class folders; sort its pictures into one for each class")
        require(
            test is target or bool(test.class_names),
            f"{test.folder} has no class folders, so there is nothing to test on; sort its pictures into class folders",
        )
        for option, folders in (("target", target), ("target_test", test)):
            for name in sorted(set(classes) ^ set(folders.class_names or classes)):
                has, lacks = ("source", option) if name in classes else (option, "source")
                raise FedmmError(
                    f"{has} has a class {name!r} that {lacks} lacks; both must have the same class folders"
                )
        train, kept = hold_out(self._shown(source, classes), self.held_out, self.seed)
        shown = self._shown(target, classes)
        tested = (shown if test is target else self._shown(test, classes)) if test.class_names else None
        view: View = CropAndFlip(self.image_size) if self.augment else WholeRows()
        return DomainPair(train, shown, kept, tested, classes, kept, view=view, input=self._input(classes))

    def _input(self, classes: Sequence[str]) -> ImageInput:
        return ImageInput(tuple(classes), self.stored_size, 0 if self.augment else self.image_size)

    def _shown(self, folders: ClassFolders, classes: Sequence[str]) -> Labelled:
        """Rows as they are stored; without augmentation that is the centre of each picture."""
        rows = folders.load(classes, self.stored_size)
        return Labelled(self._input(classes).shown(rows.x), rows.y)


def _found(option: str, folder: str) -> ClassFolders:
    require(bool(folder), f"{option} must name a folder of pictures")
    return found_in(Path(folder).expanduser())
