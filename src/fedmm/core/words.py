"""Numbers in sentences."""

from __future__ import annotations


def count_of(number: int, one: str, many: str = "") -> str:
    """Return ``1 seed`` or ``2 seeds``; many: the plural, by default ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
