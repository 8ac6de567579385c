"""A JSON object whose values are checked as they are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedmm.core.errors import FedmmError, require


@dataclass(frozen=True)
class Fields:
    """The values of a JSON object, and where it stands: a file, or a line of one."""

    where: object
    values: Mapping[str, object]

    def text(self, name: str) -> str:
        """A word or words; what is no letter, as from a file's name that is not UTF-8, becomes a question mark."""
        value = self.values.get(name)
        if not isinstance(value, str):
            raise FedmmError(f"{self.where} must give {name!r} as text, not {value!r:.60}")
        return value.encode("utf-8", "replace").decode("utf-8")

    def number(self, name: str) -> float:
        """A finite number."""
        value = finite(self.values.get(name))
        if value is None:
            raise FedmmError(f"{self.where} must give {name!r} as a finite number, not {self.values.get(name)!r:.60}")
        return value

    def whole(self, name: str) -> int:
        """A whole number of at least 0."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise FedmmError(f"{self.where} must give {name!r} as a whole number of at least 0, not {value!r:.60}")
        return value

    def accuracy(self, name: str) -> float | None:
        """A fraction in [0, 1], or None for what was never measured."""
        value = None if self.values.get(name) is None else self.number(name)
        require(
            value is None or 0 <= value <= 1, f"{self.where} must give {name!r} as a fraction in [0, 1], not {value}"
        )
        return value

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of the words."""
        value = self.text(name)
        require(value in allowed, f"{self.where} must give {name!r} as one of {', '.join(allowed)}, not {value!r:.60}")
        return value


def finite(value: object) -> float | None:
    """A JSON value as a number, or None for anything that is not a finite one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
