"""Tables of JSON and TOML files whose values are checked as they are taken, and files of JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import parse_toml


@dataclass(frozen=True)
class Fields:
    """The values of a table, and where it stands: a file, or a line of one; prefix: the tables that it is inside."""

    where: object
    values: Mapping[str, object]
    prefix: str = ""

    def text(self, name: str, default: str | None = None) -> str:
        """A word or words; what is no letter, as from a file's name that is not UTF-8, becomes a question mark."""
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise self._refuse(name, "text")
        return value.encode("utf-8", "replace").decode("utf-8")

    def number(self, name: str) -> float:
        """A finite number."""
        value = finite(self.values.get(name))
        if value is None:
            raise self._refuse(name, "a finite number")
        return value

    def whole(self, name: str, default: int | None = None, least: int = 0) -> int:
        """A whole number that is not too small."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._refuse(name, f"a whole number of at least {least}")
        return value

    def accuracy(self, name: str) -> float | None:
        """A fraction in [0, 1], or None for what was never measured."""
        value = None if self.values.get(name) is None else self.number(name)
        if value is not None and not 0 <= value <= 1:
            raise self._refuse(name, "a fraction in [0, 1]")
        return value

    def one_of(self, name: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """One of the words."""
        value = self.text(name, default)
        if value not in allowed:
            raise self._refuse(name, f"one of {', '.join(allowed)}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of words; one that is not there is empty."""
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self._refuse(name, "a list of names")
        return tuple(value)

    def table(self, name: str, *, needed: bool = False) -> Fields:
        """A table inside; one that is not there and not needed is empty."""
        value = self.values.get(name, None if needed else {})
        if not isinstance(value, dict):
            raise self._refuse(name, "a table")
        return Fields(self.where, value, f"{self.prefix}{name}.")

    def tables(self) -> dict[str, Fields]:
        """All values, which must be tables."""
        return {name: self.table(name) for name in self.values}

    def _refuse(self, name: str, kind: str) -> FedmmError:
        given = self.values.get(name)
        return FedmmError(f"{self.where} must give {self.prefix + name!r} as {kind}, not {given!r:.60}")


def finite(value: object) -> float | None:
    """A value of a file as a number, or None for anything that is not a finite one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def read_bytes(path: Path, hint: str) -> bytes:
    """The content of a file; hint: what to do where it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FedmmError(f"{path} is missing; {hint}") from None
    except (OSError, ValueError) as error:
        raise FedmmError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None


def read_json(path: Path, hint: str) -> Fields:
    """The object of a JSON file."""
    content = read_bytes(path, hint)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise FedmmError(f"{path} is not valid JSON; the run that wrote it must be repeated") from None
    require(isinstance(values, dict), f"{path} must hold a JSON object, not {type(values).__name__}")
    return Fields(path, values)


def read_json_lines(path: Path, hint: str) -> list[tuple[int, Any]]:
    """The values of a file of JSON lines with the numbers of their lines; a last line cut short is dropped."""
    lines = [(number, line) for number, line in enumerate(read_bytes(path, hint).split(b"\n"), start=1) if line.strip()]
    values = []
    for number, line in lines:
        try:
            values.append((number, json.loads(line)))
        except (ValueError, RecursionError):
            if number == lines[-1][0]:
                break
            raise FedmmError(f"{path} is not valid JSON in line {number}") from None
    return values


def read_toml(path: Path, hint: str) -> Fields:
    """The tables of a TOML file."""
    content = read_bytes(path, hint)
    return Fields(path, parse_toml(content, path))
