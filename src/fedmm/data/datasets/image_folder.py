"""Users' own pictures: for each domain, a folder with one folder of pictures per class."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from fedmm.core.errors import FedmmError, require, unknown
from fedmm.core.problem import View, WholeRows
from fedmm.core.validation import at_least, flag, within
from fedmm.data.domains import DomainPair, Labelled, Preview
from fedmm.data.inputs import ImageInput
from fedmm.data.readers.images import ClassFolders, folders_of_sites, found_in, read_folders
from fedmm.data.splitting import build_pair, split_rows
from fedmm.data.transforms import CropAndFlip

_FEWEST = 3
"""The least number of pictures per class in a preview, if the class has as many."""


@dataclass(frozen=True)
class ImageFolder:
    """Pictures of two domains, uint8 ``[rows, 3, size, size]``; hidden files are skipped.

    source: a folder with one folder of pictures per class.
    target: the same; or a folder of pictures of unknown class.
    target_test: a folder like the source's to test on; without it, tests use the target's own pictures if their classes
        are known.
    sites: instead of source and target, a folder with such a folder per site. target_sites: those in the target;
        sites with pictures outside class folders always are. A source site may lack classes.
    image_size, stored_size, held_out, seed: as in Office-31.
    augment: False shows the centre of every picture in training too.
    skip_bad: leave out files that cannot be read as pictures; otherwise raise an error that names them.
    """

    name: ClassVar[str] = "image_folder"
    summary: ClassVar[str] = "your own pictures: a source and a target folder of class folders"
    paths: ClassVar[tuple[str, ...]] = ("source", "target", "target_test", "sites")
    words: ClassVar[tuple[str, ...]] = ("target_sites",)

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
        require(not self.target_sites or bool(self.sites), "target_sites needs sites, the folder that contains them")

    def load(self) -> DomainPair:
        if self.sites:
            require(not (self.source or self.target), "sites replaces source and target; leave those two out")
            return self._load_sites(folders_of_sites(Path(self.sites).expanduser()))
        source, target = _found("source", self.source), _found("target", self.target)
        test = _found("target_test", self.target_test) if self.target_test else None
        classes = source.class_names
        require(bool(classes), f"source {self.source} has no class folders; sort its pictures into one for each class")
        require(
            test is None or bool(test.class_names),
            f"{test and test.folder} has no class folders, so there is nothing to test on; sort its pictures into "
            "class folders",
        )
        for option, folders in (("target", target), ("target_test", test)):
            for name in sorted(set(classes) ^ set((folders and folders.class_names) or classes)):
                has, lacks = ("source", option) if name in classes else (option, "source")
                raise FedmmError(
                    f"{has} has a class {name!r} that {lacks} lacks; both must have the same class folders"
                )
        return self._build({"": source}, {"": target}, test, classes)

    def _load_sites(self, folders: Mapping[str, ClassFolders]) -> DomainPair:
        for name in self.target_sites:
            if name not in folders:
                raise unknown("site in target_sites", name, folders)
        target = {
            name: folder for name, folder in folders.items() if name in self.target_sites or not folder.class_names
        }
        source = {name: folder for name, folder in folders.items() if name not in target}
        require(bool(source), f"{self.sites} has no source site: one with class folders that is not in target_sites")
        require(bool(target), f"{self.sites} has no target site; name at least one in target_sites")
        classes = tuple(sorted({label for own in source.values() for label in own.class_names}))
        for name, own in target.items():
            for label in own.class_names:
                require(label in classes, f"site {name!r} has a class {label!r} that no site of the source has")
        test = _found("target_test", self.target_test) if self.target_test else None
        if test is not None:
            require(bool(test.class_names), f"{test.folder} has no class folders, so there is nothing to test on")
            for label in test.class_names:
                require(label in classes, f"target_test has a class {label!r} that the source lacks")
        return self._build(source, target, test, classes)

    def _build(
        self,
        here: Mapping[str, ClassFolders],
        there: Mapping[str, ClassFolders],
        test: ClassFolders | None,
        classes: tuple[str, ...],
    ) -> DomainPair:
        """Build the pair from folders by site; test: target pictures for testing only."""
        several = [*here.values(), *there.values(), *([] if test is None else [test])]
        read, notes = read_folders(several, self.stored_size, skip_bad=self.skip_bad)
        prepared = ImageInput(classes, self.stored_size, 0 if self.augment else self.image_size)
        rows = [Labelled(prepared.shown(x), folders.labels(classes)) for folders, x in read]
        source, source_sites = _join_sites(dict(zip(here, rows, strict=False)))
        target, target_sites = _join_sites(dict(zip(there, rows[len(here) :], strict=False)))
        split = split_rows(
            source.y,
            target.y,
            held_out=self.held_out,
            target_held_out=0.0,
            seed=self.seed,
            source_sites=source_sites if self.sites else None,
            tested_elsewhere=test is not None,
        )
        return build_pair(
            source,
            target,
            split,
            classes,
            tested=None if test is None else rows[-1],
            source_sites=source_sites if self.sites else None,
            target_sites=target_sites if self.sites else None,
            view=choose_view(self.image_size, augment=self.augment),
            input=prepared,
            notes=notes,
        )

    @contextmanager
    def preview(self, most: int) -> Iterator[Preview]:
        """Yield the data set itself or, if it has more than ``most`` pictures, one with an evenly spread sample.

        Its files are links in a temporary folder, and each folder keeps at least three pictures if it has them.
        """
        by_option = {option: self._pictures(option) for option in self.paths if getattr(self, option)}
        total = sum(len(files) for groups in by_option.values() for files in groups)
        if total <= most:
            yield Preview(self, total, total)
            return
        with tempfile.TemporaryDirectory(prefix="fedmm-check-") as folder:
            kept = 0
            for option, groups in by_option.items():
                root = Path(getattr(self, option)).expanduser().resolve()
                for files in groups:
                    count = min(len(files), max(_FEWEST, len(files) * most // total))
                    kept += count
                    _link(root, Path(folder) / option, [files[k * len(files) // count] for k in range(count)])
            linked: dict[str, Any] = {option: str(Path(folder) / option) for option in by_option}
            yield Preview(replace(self, **linked), kept, total)

    def _pictures(self, option: str) -> list[list[Path]]:
        """Return the files below an option's folder, grouped by parent folder."""
        root = Path(getattr(self, option)).expanduser()
        groups: dict[Path, list[Path]] = defaultdict(list)
        for site, folders in (folders_of_sites(root) if option == "sites" else {"": found_in(root)}).items():
            for file in folders.files:
                path = Path(site) / file.path
                groups[path.parent].append(path)
        return list(groups.values())


def _link(root: Path, folder: Path, files: Sequence[Path]) -> None:
    for file in files:
        link = folder / file
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            link.symlink_to(root / file)
        except OSError as problem:
            raise FedmmError(f"links to pictures cannot be made in {folder.parent}: {problem.strerror}") from problem


def _join_sites(parts: Mapping[str, Labelled]) -> tuple[Labelled, list[str]]:
    """Concatenate the rows of several sites; also return each row's site."""
    names = [name for name, part in parts.items() for _ in part.y]
    if len(parts) == 1:
        return next(iter(parts.values())), names
    rows = Labelled(torch.cat([part.x for part in parts.values()]), torch.cat([part.y for part in parts.values()]))
    return rows, names


def _found(option: str, folder: str) -> ClassFolders:
    require(bool(folder), f"{option} must name a folder of pictures")
    return found_in(Path(folder).expanduser())


def choose_view(image_size: int, *, augment: bool) -> View:
    """Return how stored squares are shown: randomly cropped in training, or unchanged."""
    return CropAndFlip(image_size) if augment else WholeRows()


def require_sizes(image_size: int, stored_size: int, held_out: float) -> None:
    """Raise FedmmError for sizes and shares that no data set of pictures supports."""
    at_least("image_size", image_size, 1)
    at_least("stored_size", stored_size, 1)
    require(
        image_size <= stored_size <= 4096,
        f"stored_size must be between image_size = {image_size} and 4096, not {stored_size}",
    )
    within("held_out", held_out, 0.0, 1.0)
    require(0.0 < held_out < 1.0, f"held_out must be above 0 and below 1, not {held_out:g}")
