"""Read arrays from .npy and .npz files as rows for a network; nothing in a file is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.errors import FedmmError, require

Layout = Literal["auto", "channels_first", "channels_last"]
Array = NDArray[Any]
ARRAYS = (".npz", ".npy")
ALONE = "x"
"""The name given to the array of a .npy file."""

_CHANNELS = (1, 3)
_NUMBERS = "biuf"


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a .npz archive by name, or that of a .npy file as ``x``; reject pickled objects."""
    try:
        with path.open("rb") as stream:
            opened = np.load(stream, allow_pickle=False)
            return {ALONE: opened} if isinstance(opened, np.ndarray) else {name: opened[name] for name in opened.files}
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror or problem}") from problem
    except (
        ValueError,
        EOFError,
        KeyError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
    ) as problem:
        pickled = "allow_pickle" in str(problem) or "Object arrays" in str(problem)
        reason = "it holds Python objects, which are never unpickled" if pickled else problem
        raise FedmmError(f"{path} cannot be read as .npz or .npy arrays of numbers or text: {reason}") from problem


def layout_of(x: Array, layout: Layout, what: str) -> Layout:
    """Return where pictures ``[rows, ., ., .]`` have their channels; ``auto`` for arrays of other ranks."""
    if x.ndim != 4:
        return "auto"
    if layout != "auto":
        return layout
    first, last = x.shape[1] in _CHANNELS, x.shape[3] in _CHANNELS
    require(
        first or last,
        f"{what} has rows of shape {list(x.shape[1:])}, of which no side is the 1 or 3 channels of a picture; set "
        "data.layout = 'channels_first' or 'channels_last'",
    )
    require(
        first != last,
        f"{what} has rows of shape {list(x.shape[1:])}, whose channels may be first or last; set data.layout = "
        "'channels_first' or 'channels_last'",
    )
    return "channels_first" if first else "channels_last"


def rows_of(x: Array, layout: Layout, what: str) -> Tensor:
    """Convert an array to rows: uint8 as it is, other numbers to float32; pictures get channels first.

    uint8 ``[rows, height, width]`` are grey pictures. Raise FedmmError for values that are not finite.
    """
    require(x.dtype.kind in _NUMBERS, f"{what} holds values of type {x.dtype}; it must hold numbers")
    require(x.ndim >= 2, f"{what} has shape {list(x.shape)}; it must be [rows, ...], a row for each example")
    require(x.size > 0, f"{what} has shape {list(x.shape)}, which holds nothing")
    if layout == "channels_last":
        x = x.transpose(0, 3, 1, 2)
    if x.dtype == np.uint8:
        x = x[:, None] if x.ndim == 3 else x
        return torch.from_numpy(np.array(x, order="C"))
    with np.errstate(over="ignore"):
        numbers = np.array(x, dtype=np.float32, order="C")
    bad = np.flatnonzero(~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1))
    require(
        not len(bad),
        f"{what} has a value that is NaN or infinite in row {bad[0] if len(bad) else ''}; remove or fill such values",
    )
    return torch.from_numpy(numbers)


def texts_of(values: Array, what: str) -> list[str]:
    """Return one string per row: names unchanged, whole numbers in digits."""
    require(values.ndim == 1, f"{what} has shape {list(values.shape)}; it must be [rows], one value a row")
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "f":
        exact = values.astype(np.float64)
        whole = (exact == np.rint(exact)) & (np.abs(exact) < 2.0**63)  # casts beyond int64 are undefined
        require(bool(whole.all()), f"{what} holds {values.dtype} values; use whole numbers or text")
        values = values.astype(np.int64)
    require(values.dtype.kind in "iubU", f"{what} holds values of type {values.dtype}; use whole numbers or text")
    return [str(value) for value in values.tolist()]


def find_name(arrays: dict[str, Array], names: Sequence[str], path: Path) -> str:
    """Return the first of the names that the arrays have."""
    for name in names:
        if name in arrays:
            return name
    has = ", ".join(sorted(arrays)) or "none"
    raise FedmmError(f"{path} must hold an array {names[0]!r}; its arrays are {has}")
