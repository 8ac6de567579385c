"""Office-31: 31 classes of office objects from product pages (amazon), an SLR camera (dslr) and a webcam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmm.core.errors import require
from fedmm.core.validation import at_least, flag, one_of
from fedmm.data.datasets.image_folder import choose_view, require_sizes
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.inputs import ImageInput
from fedmm.data.readers.images import ClassFolders
from fedmm.data.sources import sources
from fedmm.data.splitting import build_pair, split_rows

Domain = Literal["amazon", "dslr", "webcam"]
DOMAINS = ("amazon", "dslr", "webcam")


@dataclass(frozen=True)
class Office31:
    """Two of the three domains, uint8 ``[rows, 3, stored_size, stored_size]``; the network sees squares cut from them.

    All target pictures are trained on, without labels, and tested on: the usual transductive protocol.

    image_size: side in pixels of the square that a network sees: a random crop in training, otherwise the centre.
    stored_size: length in pixels to which the shorter side is resized.
    held_out: the share of every source class that is kept from training, to choose hyperparameters and test by.
    seed: selects the pictures held out.
    augment: False shows the centre crop in training too; frozen layers then process each picture only once.
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
        require(self.source != self.target, f"source and target must differ, but both are {self.source!r}")
        require_sizes(self.image_size, self.stored_size, self.held_out)
        at_least("seed", self.seed, 0)
        flag("augment", self.augment)

    def load(self) -> DomainPair:
        source, target = _domain(self.source), _domain(self.target)
        classes = source.class_names
        stored = ImageInput(classes, self.stored_size, 0 if self.augment else self.image_size)
        here, there = (
            Labelled(stored.shown(domain.pictures(self.stored_size)), domain.labels(classes))
            for domain in (source, target)
        )
        split = split_rows(here.y, there.y, held_out=self.held_out, target_held_out=0.0, seed=self.seed)
        return build_pair(here, there, split, classes, view=choose_view(self.image_size, augment=self.augment))


def _domain(name: str) -> ClassFolders:
    """Return the files of a domain, in the edition that is present."""
    office = sources()["office31"]
    folder = office.folder("office31")
    return ClassFolders(folder, office.edition_in(folder, name).files)
