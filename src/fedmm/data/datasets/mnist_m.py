"""MNIST and MNIST-M: handwritten digits, and the same digits blended with patches of photographs."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.seeding import hashed, key
from fedmm.core.validation import at_least, one_of
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.readers.images import read_picture
from fedmm.data.sources import Source, read_file, sources
from fedmm.data.tensor_files import load_cached

SIDE = 28
VALIDATION_ROWS = 5000
"""MNIST's first training digits, kept for choosing hyperparameters."""

_RECIPE = 1
"""Increase this whenever the same options would produce other pixels."""

_BYTE_CODE = 0x08
"""The type code of unsigned bytes in idx files; MNIST has no other."""

_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class MnistM:
    """Both domains hold the same digits, uint8 ``[rows, 3, 28, 28]``; the target shows |patch of a photograph - digit|.

    train_rows: how many of MNIST's training digits to use, after the first 5,000, which are ``source_validation``.
    test_rows: how many of MNIST's test digits to use, from the first.
    digits: ``binarised``, as in the paper's program: any ink is white; ``grey``, as in Ganin et al.
    seed: selects the patches.
    """

    name: ClassVar[str] = "mnist_m"
    summary: ClassVar[str] = "MNIST, and MNIST-M made from it and photographs of BSDS500 (fedmm data fetch mnist_m)"

    train_rows: int = 55000
    test_rows: int = 10000
    digits: Literal["binarised", "grey"] = "binarised"
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("train_rows", self.train_rows, 1)
        at_least("test_rows", self.test_rows, 1)
        one_of("digits", self.digits, ("binarised", "grey"))
        at_least("seed", self.seed, 0)

    def load(self) -> DomainPair:
        mnist, photographs = sources()["mnist"], sources()["bsds500"]
        checksums = [file.sha256 for source in (mnist, photographs) for file in source.editions[0].files]
        made = load_cached(
            self.name,
            (_RECIPE, self.digits, self.seed, *checksums),
            lambda: blend_digits(mnist, photographs, digits=self.digits, seed=self.seed),
        )
        for option, wanted, available in (
            ("train_rows", self.train_rows, len(made["train_y"]) - VALIDATION_ROWS),
            ("test_rows", self.test_rows, len(made["test_y"])),
        ):
            require(wanted <= available, f"{option} must be at most {available}, not {wanted}")
        train = slice(VALIDATION_ROWS, VALIDATION_ROWS + self.train_rows)
        return DomainPair(
            source=_source(made, "train", train),
            target=_target(made, "train", train),
            source_test=_source(made, "test", slice(self.test_rows)),
            target_test=_target(made, "test", slice(self.test_rows)),
            class_names=tuple("0123456789"),
            source_validation=_source(made, "train", slice(VALIDATION_ROWS)),
        )


def _source(made: dict[str, Tensor], part: str, rows: slice) -> Labelled:
    grey = made[f"{part}_digit"][rows].unsqueeze(1)
    return Labelled(grey.repeat(1, 3, 1, 1), made[f"{part}_y"][rows].long())


def _target(made: dict[str, Tensor], part: str, rows: slice) -> Labelled:
    return Labelled(made[f"{part}_blend"][rows], made[f"{part}_y"][rows].long())


def blend_digits(mnist: Source, photographs: Source, *, digits: str, seed: int) -> dict[str, Tensor]:
    """Return all digits of MNIST's two parts, as uint8 tensors.

    For each part, ``train`` and ``test``: ``_digit [n, 28, 28]``, ``_blend [n, 3, 28, 28]`` and ``_y [n]``.
    Raise FedmmError if a file's checksum is wrong.
    """
    pictures_folder = photographs.folder("mnist_m")
    read = read_mnist(mnist, "mnist_m")
    pictures = [
        np.asarray(read_picture(read_file(pictures_folder, file), str(pictures_folder / file.path)))
        for file in photographs.editions[0].files
    ]
    made: dict[str, _Bytes] = {}
    for part, (grey, labels) in read.items():
        images = np.where(grey > 0, np.uint8(255), np.uint8(0)) if digits == "binarised" else grey
        blend = _blend(images, pictures, key(seed, "mnist_m", part))
        made |= {f"{part}_digit": images, f"{part}_blend": blend, f"{part}_y": labels}
    return {name: torch.from_numpy(array.copy()) for name, array in made.items()}


def read_mnist(mnist: Source, data_set: str) -> dict[str, tuple[_Bytes, _Bytes]]:
    """Read the digits ``[n, 28, 28]`` and labels ``[n]`` of MNIST's parts, ``train`` and ``test``.

    data_set: the data set that needs them, for error messages.
    """
    folder = mnist.folder(data_set)
    content = {file.path: read_file(folder, file) for file in mnist.editions[0].files}
    found = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = (
            read_idx(content[name], dimensions, str(folder / name))
            for name, dimensions in ((f"{prefix}-images-idx3-ubyte.gz", 3), (f"{prefix}-labels-idx1-ubyte.gz", 1))
        )
        require(
            images.shape == (len(labels), SIDE, SIDE) and labels.max(initial=0) <= 9,
            f"{folder} must hold {SIDE} x {SIDE} digits with a label of 0 to 9 for each; "
            f"the {part} files hold images {list(images.shape)} and labels {list(labels.shape)}",
        )
        found[part] = (images, labels)
    return found


def read_idx(packed: bytes, dimensions: int, what: str) -> _Bytes:
    """Read a gzipped idx file of bytes with ``dimensions`` dimensions; raise FedmmError if it is not one."""
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as problem:
        raise FedmmError(f"{what} cannot be read as a gzipped idx file: {problem}") from problem
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, _BYTE_CODE, dimensions]):
        raise FedmmError(
            f"{what} must begin with the magic number {_BYTE_CODE << 8 | dimensions:#010x}, an idx file of bytes with "
            f"{dimensions} dimensions, not with {content[:4].hex() or 'nothing'}"
        )
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    if len(content) - header != math.prod(shape):
        raise FedmmError(
            f"{what} must have {math.prod(shape)} bytes after its header, for sizes {shape}, "
            f"not {len(content) - header}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _blend(images: _Bytes, pictures: list[_Bytes], part: int) -> _Bytes:
    """Blend digits ``[n, 28, 28]`` with random patches of random pictures: |patch - digit|, ``[n, 3, 28, 28]``.

    pictures: ``[h, w, 3]`` each. part: the random key; a digit's patch depends only on it and on the digit's index.
    """

    def draw(what: str) -> npt.NDArray[np.int64]:
        return hashed(key(part, what), torch.arange(len(images))).numpy()

    which, down, right = draw("photograph") % len(pictures), draw("down"), draw("right")
    blend = np.empty((len(images), 3, SIDE, SIDE), np.uint8)
    for number, picture in enumerate(pictures):
        rows = np.flatnonzero(which == number)
        windows = sliding_window_view(picture, (SIDE, SIDE), axis=(0, 1))
        patches = windows[down[rows] % windows.shape[0], right[rows] % windows.shape[1]]
        digit = images[rows, None]
        # Maximum minus minimum, since bytes are unsigned.
        blend[rows] = np.maximum(patches, digit) - np.minimum(patches, digit)
    return blend
