"""A message between processes: named arrays, plain values, and numbers that were measured. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
About = dict[str, int | float | str | bool]


class Malformed(Exception):  # noqa: N818 - reads as what is wrong
    """A message that cannot be read, and why, in words that follow its sender's name."""


class Packed(NamedTuple):
    """What travels."""

    arrays: Arrays
    about: About
    metrics: dict[str, float]


def one_line(text: object, most: int = 300) -> str:
    """What another machine says, fit for a line of a log."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:most])


def contents(arrays: Mapping[str, NDArray[Any]]) -> str:
    """What arrays are, in words: name, shape, dtype and bytes of each."""
    named = [f"{name} {list(array.shape)} {array.dtype} {array.nbytes} bytes" for name, array in arrays.items()]
    return "; ".join(named) or "no arrays"
