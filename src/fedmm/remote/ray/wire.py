"""Messages with arrays in place of tensors, which Ray passes between processes without copying them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
Packed = Any
"""A message of which every tensor is an array."""


def packed(message: Any) -> Packed:
    """A message of dicts, tuples and dataclasses, with arrays; a tensor that occurs twice travels once."""
    known: dict[int, np.ndarray[Any, Any]] = {}

    def to_array(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = leaf.detach().cpu().contiguous().numpy()
        return known[id(leaf)]

    return _mapped(message, to_array)


def unpacked(message: Packed, device: torch.device, *, own: bool = False) -> Any:
    """The message with tensors on a device.

    On a CPU they are views that must not be written to and, of Ray's store, live as long as it is connected; own: or
    copies.
    """

    def to_tensor(leaf: Any) -> Any:
        return torch.from_numpy(leaf).to(device, copy=own) if isinstance(leaf, np.ndarray) else leaf

    return _mapped(message, to_tensor)


def copied(message: Packed) -> Packed:
    """The message with arrays of its own."""
    return _mapped(message, lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(each, change) for key, each in value.items()}
    if isinstance(value, tuple):
        each_changed = [_mapped(each, change) for each in value]
        return type(value)(*each_changed) if hasattr(value, "_fields") else tuple(each_changed)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _mapped(getattr(value, field.name), change) for field in fields(value)})
    return change(value)


def _be_warned_once() -> None:
    """Torch warns once of an array that cannot be written to, as views of Ray's memory are."""
    array = np.zeros(1)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.from_numpy(array)


_be_warned_once()
