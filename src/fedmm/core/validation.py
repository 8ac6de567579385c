"""Checks of single values that raise one-sentence errors for the user; ``name`` is the option's own name."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from fedmm.core.errors import FedmmError, require
from fedmm.core.layout import PerGroup


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FedmmError(f"{name} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    require(math.isfinite(number), f"{name} must be finite, not {value!r:.40}")
    return number


def positive(name: str, value: object) -> None:
    """Refuse anything but a finite number above 0."""
    require(_number(name, value) > 0, f"{name} must be above 0, not {value!r}")


def not_negative(name: str, value: object) -> None:
    """Refuse anything but a finite number of at least 0."""
    require(_number(name, value) >= 0, f"{name} must be 0 or more, not {value!r}")


def within(name: str, value: object, low: float, high: float) -> None:
    """Refuse anything but a number in [low, high]."""
    require(low <= _number(name, value) <= high, f"{name} must be between {low:g} and {high:g}, not {value!r}")


def fraction(name: str, value: object) -> None:
    """Refuse anything but a number in [0, 1)."""
    require(0 <= _number(name, value) < 1, f"{name} must be at least 0 and below 1, not {value!r}")


def rate(name: str, value: object) -> None:
    """Refuse anything but a number in (0, 1]."""
    require(0 < _number(name, value) <= 1, f"{name} must be above 0 and at most 1, not {value!r}")


def at_least(name: str, value: object, low: int) -> None:
    """Refuse anything but a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise FedmmError(f"{name} must be a whole number, not {value!r}")
    require(value >= low, f"{name} must be at least {low}, not {value!r}")


def flag(name: str, value: object) -> None:
    """Refuse anything but true or false."""
    require(isinstance(value, bool), f"{name} must be true or false, not {value!r}")


def instance(name: str, value: object, kind: type) -> None:
    """Refuse anything but an instance of ``kind``, one of fedmm's classes."""
    got = f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r:.60}"
    require(isinstance(value, kind), f"{name} must be an instance of fedmm's {kind.__name__}, not {got}")


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse anything but one of the allowed words."""
    require(value in allowed, f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def per_group(name: str, value: PerGroup, *, zero: bool = False) -> None:
    """Refuse a coefficient, or one of any group, that is not above 0 (or at least 0 if ``zero``)."""
    check = not_negative if zero else positive
    if isinstance(value, Mapping):
        require(bool(value), f"{name} must name at least one group of parameters")
        for group, number in value.items():
            check(f"{name}.{group}", number)
    else:
        check(name, value)


_DEVICES = ("cpu", "cuda", "mps", "xpu")


def require_device(device: torch.device | str, name: str = "device") -> None:
    """Refuse a device that does not exist or cannot compute."""
    kind = str(device).split(":")[0]
    reason = f"it must be one of {', '.join(_DEVICES)}"
    if kind in _DEVICES:
        try:
            torch.zeros(1, device=device)
            return
        except (RuntimeError, AssertionError) as problem:
            reason = str(problem).splitlines()[0]
    raise FedmmError(f"{name} {str(device)!r} cannot be used here: {reason}")
