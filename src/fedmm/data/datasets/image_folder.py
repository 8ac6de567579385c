"""Your own pictures: a folder with a folder of pictures for each class, for each domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from fedmm.core.errors import FedmmError, require, unknown
from fedmm.core.problem import View, WholeRows
from fedmm.core.validation import at_least, flag
from fedmm.data.class_folders import ClassFolders, folders_of_sites, found_in, hold_out, read_folders, require_sizes
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.inputs import ImageInput
from fedmm.data.splitting import split_rows, split_sites
from fedmm.data.transforms import CropAndFlip


@dataclass(frozen=True)
class ImageFolder:
    """Pictures of two domains, uint8 ``[rows, 3, size, size]``; hidden files are skipped.

    source: a folder with one folder of pictures for each class.
    target: the same; or a folder of pictures whose classes are not known.
    target_test: a folder like the source's to test on; without it the target's own pictures are, where their classes
        are known.
    sites: instead of source and target, a folder with such a folder for each site. target_sites: those that are the
        target; sites whose pictures lie in no class folder are too. A site of the source may lack classes.
    image_size, stored_size, held_out, seed: as in Office-31.
    augment: False shows the centre of every picture in training too.
    skip_bad: leave out files that cannot be read as pictures; else they are refused, all by name.
    """

    name: ClassVar[str] = "image_folder"
    summary: ClassVar[str] = "your own pictures: a source and a target folder of class folders"
    paths: ClassVar[tuple[str, ...]] = ("source", "target", "target_test", "sites")

    source: str = ""
    target: str = ""
    target_test: str = ""
    sites: str = ""
    target_sites: tuple[str, ...] = ()
    image_size: int = 224
    stored_size: int = 256
    held_out: float = 0.1
    augment: bool = True
    seed: int = 0
    skip_bad: bool = False

    def __post_init__(self) -> None:
        require_sizes(self.image_size, self.stored_size, self.held_out)
        flag("augment", self.augment)
        flag("skip_bad", self.skip_bad)
        at_least("seed", self.seed, 0)
        require(not self.target_sites or bool(self.sites), "target_sites needs sites, the folder that they are in")

    def load(self) -> DomainPair:
        if self.sites:
            require(not (self.source or self.target), "sites stands instead of source and target; leave them out")
            return self._of_sites(folders_of_sites(Path(self.sites).expanduser()))
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
        (labelled, shown, *tests), notes = self._read([source, target, *([] if test is target else [test])], classes)
        train, kept = hold_out(labelled, self.held_out, self.seed)
        tested = (*tests, shown)[0] if test.class_names else None
        return DomainPair(
            train, shown, kept, tested, classes, kept, view=self._view, input=self._input(classes), notes=notes
        )

    def _of_sites(self, folders: Mapping[str, ClassFolders]) -> DomainPair:
        for name in self.target_sites:
            if name not in folders:
                raise unknown("site in target_sites", name, folders)
        there = [name for name, found in folders.items() if name in self.target_sites or not found.class_names]
        here = [name for name in folders if name not in there]
        require(
            bool(here), f"{self.sites} has no site of the source: one with class folders that target_sites leaves out"
        )
        require(bool(there), f"{self.sites} has no site of the target; name one, or more, as target_sites")
        classes = tuple(sorted({label for name in here for label in folders[name].class_names}))
        for name in there:
            for label in folders[name].class_names:
                require(label in classes, f"site {name!r} has a class {label!r} that no site of the source has")
        test = _found("target_test", self.target_test) if self.target_test else None
        if test is not None:
            self._require_known(test, classes)
        several = [*(folders[name] for name in (*here, *there)), *([] if test is None else [test])]
        read, notes = self._read(several, classes)
        source, source_sites = _joined(dict(zip(here, read, strict=False)))
        target, target_sites = _joined(dict(zip(there, read[len(here) :], strict=False)))
        split = split_rows(
            source.y,
            target.y,
            held_out=self.held_out,
            target_held_out=0.0,
            seed=self.seed,
            source_sites=source_sites,
            tested_elsewhere=test is not None,
        )
        kept = Labelled(source.x[split.source_test], source.y[split.source_test])
        tested = None if test is None else read[-1]
        if split.target_test is not None:
            every = len(split.target_test) == len(target.y)
            tested = target if every else Labelled(target.x[split.target_test], target.y[split.target_test])
        return DomainPair(
            Labelled(source.x[split.source], source.y[split.source]),
            target,
            kept,
            tested,
            classes,
            kept,
            view=self._view,
            input=self._input(classes),
            sites=split_sites(source_sites, target_sites, split),
            notes=notes,
        )

    def _require_known(self, test: ClassFolders, classes: Sequence[str]) -> None:
        """Refuse to test on classes that are not among those of the source."""
        require(bool(test.class_names), f"{test.folder} has no class folders, so there is nothing to test on")
        for label in test.class_names:
            require(label in classes, f"target_test has a class {label!r} that the source lacks")

    @property
    def _view(self) -> View:
        return CropAndFlip(self.image_size) if self.augment else WholeRows()

    def _input(self, classes: Sequence[str]) -> ImageInput:
        return ImageInput(tuple(classes), self.stored_size, 0 if self.augment else self.image_size)

    def _read(self, several: Sequence[ClassFolders], classes: Sequence[str]) -> tuple[list[Labelled], tuple[str, ...]]:
        """The rows of folders as they are stored, and what was left out, in words.

        Without augmentation they are the centre of each picture.
        """
        found, notes = read_folders(several, self.stored_size, skip_bad=self.skip_bad)
        return [Labelled(self._input(classes).shown(x), folders.labels(classes)) for folders, x in found], notes


def _joined(parts: Mapping[str, Labelled]) -> tuple[Labelled, list[str]]:
    """The rows of several sites, and the site's name of each."""
    rows = Labelled(torch.cat([part.x for part in parts.values()]), torch.cat([part.y for part in parts.values()]))
    return rows, [name for name, part in parts.items() for _ in part.y]


def _found(option: str, folder: str) -> ClassFolders:
    require(bool(folder), f"{option} must name a folder of pictures")
    return found_in(Path(folder).expanduser())
