"""MNIST's file format: a magic number, the sizes, then bytes."""

from __future__ import annotations

import gzip
import math
import zlib

import numpy as np
import numpy.typing as npt

from fedmm.core.errors import FedmmError

_BYTES = 0x08
"""The type code of unsigned bytes, the only one MNIST has."""


def read_idx(packed: bytes, dimensions: int, what: str) -> npt.NDArray[np.uint8]:
    """The array of a gzipped idx file of bytes with so many dimensions; a file that is not one is refused by name."""
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as problem:
        raise FedmmError(f"{what} cannot be read as a gzipped idx file: {problem}") from problem
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, _BYTES, dimensions]):
        raise FedmmError(
            f"{what} must begin with the magic number {_BYTES << 8 | dimensions:#010x}, an idx file of bytes with "
            f"{dimensions} dimensions, not with {content[:4].hex() or 'nothing'}"
        )
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    if len(content) - header != math.prod(shape):
        raise FedmmError(
            f"{what} must have {math.prod(shape)} bytes after its header, for sizes {shape}, "
            f"not {len(content) - header}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
