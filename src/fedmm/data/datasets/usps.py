"""MNIST and USPS: two collections of handwritten digits, either of which can be the source or the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedmm.core.errors import require
from fedmm.core.validation import at_least, one_of
from fedmm.data.datasets.mnist_m import SIDE, VALIDATION_ROWS, read_mnist
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.readers.hdf5 import read_hdf5
from fedmm.data.sources import read_file, sources

Domain = Literal["mnist", "usps"]
DOMAINS = ("mnist", "usps")
USPS_SIDE = 16
VALIDATION = {"mnist": VALIDATION_ROWS, "usps": 729}
"""The first training digits of a source, kept for choosing hyperparameters; for USPS, a tenth."""

_SMALLEST, _LARGEST = 8, 256
"""Limits of the side in pixels."""

_Bytes = npt.NDArray[np.uint8]


class _Part(NamedTuple):
    """Digits ``[rows, side, side]`` and their labels ``[rows]``."""

    x: _Bytes
    y: _Bytes

    def first(self, rows: int) -> _Part:
        return _Part(self.x[:rows], self.y[:rows])

    def after(self, rows: int) -> _Part:
        return _Part(self.x[rows:], self.y[rows:])

    def shown(self, size: int) -> Labelled:
        """Return them in one channel, with sides of ``size`` pixels."""
        return Labelled(torch.from_numpy(_resize(self.x, size)).unsqueeze(1), torch.from_numpy(self.y.astype(np.int64)))


@dataclass(frozen=True)
class Usps:
    """Grey digits of both domains, white on black, uint8 ``[rows, 1, image_size, image_size]``.

    train_rows: how many training digits of each domain to use, the source's after those of ``source_validation``; 0
    uses all.
    test_rows: how many test digits of each to use; 0 uses all.
    image_size: side in pixels. 28 is MNIST's, to which most papers enlarge USPS, and 16 is USPS's; digits of any other
    size are resized bilinearly.
    """

    name: ClassVar[str] = "usps"
    summary: ClassVar[str] = "MNIST and USPS, handwritten digits, from one to the other (fedmm data fetch usps)"

    source: Domain = "mnist"
    target: Domain = "usps"
    image_size: int = SIDE
    train_rows: int = 0
    test_rows: int = 0

    def __post_init__(self) -> None:
        one_of("source", self.source, DOMAINS)
        one_of("target", self.target, DOMAINS)
        require(self.source != self.target, f"source and target must differ, but both are {self.source!r}")
        at_least("image_size", self.image_size, _SMALLEST)
        require(self.image_size <= _LARGEST, f"image_size must be at most {_LARGEST}, not {self.image_size}")
        at_least("train_rows", self.train_rows, 0)
        at_least("test_rows", self.test_rows, 0)

    def load(self) -> DomainPair:
        parts = {"mnist": _mnist(), "usps": _usps()}
        source, target = parts[self.source], parts[self.target]
        kept = VALIDATION[self.source]
        train, here = source["train"].after(kept), self.source
        require(
            len(train.y) > 0,
            f"{here} must have more than the {kept} training digits of source_validation, not {len(source['train'].y)}",
        )
        return DomainPair(
            source=self._rows(train, here, "train_rows"),
            target=self._rows(target["train"], self.target, "train_rows"),
            source_test=self._rows(source["test"], here, "test_rows"),
            target_test=self._rows(target["test"], self.target, "test_rows"),
            class_names=tuple("0123456789"),
            source_validation=source["train"].first(kept).shown(self.image_size),
        )

    def _rows(self, part: _Part, domain: str, option: Literal["train_rows", "test_rows"]) -> Labelled:
        wanted, available = getattr(self, option), len(part.y)
        require(
            wanted <= available, f"{option} must be at most {available}, the digits that {domain} has, not {wanted}"
        )
        return part.first(wanted or available).shown(self.image_size)


def _mnist() -> dict[str, _Part]:
    return {name: _Part(*part) for name, part in read_mnist(sources()["mnist"], "usps").items()}


def _usps() -> dict[str, _Part]:
    """Return both parts of USPS, as its file divides them."""
    source = sources()["usps"]
    folder = source.folder("usps")
    (file,) = source.editions[0].files
    path = folder / file.path
    arrays = read_hdf5(read_file(folder, file), str(path))
    found = {}
    for part in ("train", "test"):
        x, y = arrays.get(f"{part}/data", np.empty(0)), arrays.get(f"{part}/target", np.empty(0))
        require(
            y.ndim == 1
            and y.dtype.kind in "iu"
            and x.shape == (len(y), USPS_SIDE**2)
            and bool(len(y) and ((y >= 0) & (y <= 9)).all() and ((x >= 0) & (x <= 1)).all()),
            f"{path} must hold {part}/data, rows of 256 numbers from 0 to 1, and {part}/target, a label of 0 to 9 for "
            f"each; it holds sizes {list(x.shape)} and {list(y.shape)}",
        )
        pixels = np.rint(x.astype(np.float64) * 255).astype(np.uint8)
        found[part] = _Part(pixels.reshape(-1, USPS_SIDE, USPS_SIDE), y.astype(np.uint8))
    return found


def _resize(digits: _Bytes, size: int) -> _Bytes:
    """Resize squares ``[rows, side, side]`` to sides of ``size`` pixels."""
    from PIL import Image  # noqa: PLC0415 - slow to import, and only pictures need it

    if digits.shape[1] == size:
        return digits.copy()
    made = np.empty((len(digits), size, size), np.uint8)
    for row, digit in enumerate(digits):
        made[row] = np.asarray(Image.fromarray(digit).resize((size, size), Image.Resampling.BILINEAR))
    return made
