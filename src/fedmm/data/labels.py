"""Convert labels of any form to class numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require

_CLASSES_SHOWN = 10
UNLABELLED = -1
"""The label of a row whose class is not known."""
UNKNOWN = -2
"""The label of a row whose class the model does not know."""


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once: whole numbers by value, then other names in alphabetical order."""
    return tuple(sorted(set(names), key=lambda name: (not _is_whole(name), int(name) if _is_whole(name) else 0, name)))


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and name.isascii() and len(name) < 20


def number_labels(names: Iterable[str], class_names: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return class numbers, int64 ``[rows]``, and the names that are no class, whose rows are ``UNKNOWN``.

    The row of an empty name is ``UNLABELLED``.
    """
    number = {"": UNLABELLED} | {name: number for number, name in enumerate(class_names)}
    given = list(names)
    strange = sort_names(name for name in given if name not in number)
    return torch.tensor([number.get(name, UNKNOWN) for name in given], dtype=torch.int64), strange


def list_words(y: object) -> list[Any] | None:
    """Return the labels as a list if any of them is a word; otherwise None."""
    if hasattr(y, "to_numpy"):
        y = y.to_numpy()
    if isinstance(y, np.ndarray):
        if y.dtype.kind not in "UO" or y.ndim != 1:
            return None
        y = y.tolist()
    if not isinstance(y, list | tuple) or not any(isinstance(value, str) for value in y):
        return None
    return list(y)


def _is_missing(value: object) -> bool:
    return (
        value is None
        or (isinstance(value, str) and not value)
        or type(value).__name__ == "NAType"
        or (isinstance(value, float) and math.isnan(value))
    )


def read_labels(y: object, what: str, classes: Sequence[str] = ()) -> Tensor:
    """Convert y to int64 ``[rows]``; a word becomes its index in ``classes``."""
    named = list_words(y)
    if named is not None:
        return torch.tensor([read_label(name, f"{what}, row {row}", classes) for row, name in enumerate(named)])
    if hasattr(y, "to_numpy"):
        y = y.to_numpy()
    if isinstance(y, list | tuple) or (isinstance(y, np.ndarray) and y.dtype.kind == "O"):
        missing = next((row for row, value in enumerate(y) if _is_missing(value)), None)
        require(missing is None, _no_label(f"{what}, row {missing}"))
        try:
            y = np.asarray(y.tolist() if isinstance(y, np.ndarray) else y)
        except ValueError as problem:
            raise FedmmError(
                f"{what} has labels that are {name_type(y)}; give one whole number for each row"
            ) from problem
    require(
        not classes or not isinstance(y, np.ndarray | Tensor), f"{what} has labels that are numbers; {_those(classes)}"
    )
    if isinstance(y, np.ndarray):
        require(
            y.dtype.kind in "biuf",
            f"{what} has labels of numpy type {y.dtype}; give words, or number the classes from 0",
        )
        y = torch.from_numpy(y.astype(np.float64 if y.dtype.kind == "f" else np.int64))
    if not isinstance(y, Tensor):
        raise FedmmError(f"{what} has labels that are {name_type(y)}; give a numpy array, a torch tensor or a list")
    require(not y.is_complex(), f"{what} has complex labels; number the classes from 0")
    require(
        y.ndim == 1, f"{what} has labels of shape {tuple(y.shape)}; give one whole number for each row, shape [rows]"
    )
    values = y.detach().to(torch.float64 if y.is_floating_point() else torch.int64)
    if values.is_floating_point() and bool(values.isnan().any()):
        raise FedmmError(_no_label(f"{what}, row {int(values.isnan().nonzero()[0])}"))
    wrong = (values < 0) | (values != values.round())
    if values.is_floating_point():  # casts beyond int64 are undefined
        wrong |= ~(values < 2.0**63)
    bad = wrong.nonzero()
    if len(bad) > 0:
        raise _bad_label(values[bad[0, 0]].item(), f"{what}, row {int(bad[0])}")
    return values.to(torch.int64)


def read_label(value: object, what: str, classes: Sequence[str] = ()) -> int:
    """Convert one label: a number, an array or tensor of one element, or a word that names a class."""
    require(not _is_missing(value), _no_label(what))
    if isinstance(value, str) and classes:
        require(value in classes, f"{what} has label {value!r:.40}; {_those(classes)}")
        return classes.index(value)
    if isinstance(value, np.ndarray | np.generic):
        value = value.item() if value.size == 1 else value
    elif isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else value
    require(not classes, f"{what} has label {value!r:.40}; {_those(classes)}")
    if not isinstance(value, int | float) or not 0 <= value < 2**63 or not float(value).is_integer():
        raise _bad_label(value, what)
    return int(value)


def _bad_label(value: object, what: str) -> FedmmError:
    return FedmmError(f"{what} has label {value!r:.40}; labels must be whole numbers of 0 or more, below 2**63")


def _no_label(what: str) -> str:
    return f"{what} has no label; give rows without labels as target="


def _those(classes: Sequence[str]) -> str:
    shown = ", ".join(classes[:_CLASSES_SHOWN]) + (", ..." if len(classes) > _CLASSES_SHOWN else "")
    return f"the classes are {shown}"


def name_type(value: object) -> str:
    """Describe a value's type for a message."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__name__}"
