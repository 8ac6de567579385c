"""Office-31: 31 kinds of office objects from a shop's pages (amazon), a camera (dslr) and a webcam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmm.core.errors import require
from fedmm.core.problem import View, WholeRows
from fedmm.core.validation import at_least, flag, one_of
from fedmm.data.class_folders import ClassFolders, hold_out, require_sizes
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.download.registry import sources
from fedmm.data.transforms import CropAndFlip

Domain = Literal["amazon", "dslr", "webcam"]
DOMAINS = ("amazon", "dslr", "webcam")


@dataclass(frozen=True)
class Office31:
    """Two of the three domains, uint8 ``[rows, 3, stored_size, stored_size]``; the network sees squares cut from them.

    All pictures of the target are trained on, without their labels, and tested on: the usual transductive protocol.

    image_size: pixels of the square a network sees, cut at random in training and from the centre else.
    stored_size: pixels to which the shorter side is brought.
    held_out: the share of every class of the source that is not trained on, to choose hyperparameters and test by.
    seed: which are held out.
    augment: False shows the centre of every picture in training too; frozen layers then look at it only once.
    """

    name: ClassVar[str] = "office31"
    summary: ClassVar[str] = "Office-31, 31 classes: from one of amazon, dslr, webcam to another (fedmm data fetch)"

    source: Domain = "amazon"
    target: Domain = "webcam"
    image_size: int = 224
    stored_size: int = 256
    held_out: float = 0.1
    seed: int = 0
    augment: bool = True

    def __post_init__(self) -> None:
        one_of("source", self.source, DOMAINS)
        one_of("target", self.target, DOMAINS)
        require(self.source != self.target, f"source and target must differ, not be {self.source!r} both")
        require_sizes(self.image_size, self.stored_size, self.held_out)
        at_least("seed", self.seed, 0)
        flag("augment", self.augment)

    def load(self) -> DomainPair:
        source, target = _domain(self.source), _domain(self.target)
        classes = source.class_names
        train, kept = hold_out(self._stored(source, classes), self.held_out, self.seed)
        shown = self._stored(target, classes)
        view: View = CropAndFlip(self.image_size) if self.augment else WholeRows()
        return DomainPair(train, shown, kept, shown, classes, kept, view=view)

    def _stored(self, domain: ClassFolders, classes: Sequence[str]) -> Labelled:
        rows = domain.load(classes, self.stored_size)
        if self.augment:
            return rows
        return Labelled(CropAndFlip(self.image_size).evaluate(rows.x).contiguous(), rows.y)


def _domain(name: str) -> ClassFolders:
    """The files a domain must have, in the edition that is there."""
    office = sources()["office31"]
    folder = office.folder("office31")
    return ClassFolders(folder, office.edition_in(folder, name).files)
