"""User-facing errors and helpers that build their messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

Say = Callable[[str], None]
"""A callback that shows one line to the user."""


class FedmmError(ValueError):
    """Raised when user input cannot be used; the message is one sentence that says what would be right."""

    def __str__(self) -> str:
        """Return the message on one line, with unprintable characters such as line breaks in file names escaped."""
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in super().__str__())


class Diverged(FedmmError):  # noqa: N818 - reads as what happened
    """Raised when a client produces a non-finite value or a round explodes.

    client: its name; empty if every client was finite but their mean was not. exploded: what grew too large. reason:
    what happened, in words. partial: the result up to the last good round, as the call would have returned it.
    """

    def __init__(self, client: str, round: int, exploded: str = "") -> None:
        self.partial: object | None = None
        self.client = client
        self.round = round
        who = f"client {client!r} produced" if client else "the mean of the clients' uploads has"
        self.reason = exploded or f"{who} non-finite parameters"
        super().__init__(f"{self.reason} in round {round}: use smaller learning rates or larger penalties")


def unknown(what: str, given: str, known: Iterable[str]) -> FedmmError:
    """Return the error for a name that is not in a table, with the closest known name as a suggestion."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return FedmmError(f"unknown {what} {given!r}{hint} (known: {', '.join(names)})")


def require(condition: bool, message: str) -> None:
    """Raise ``FedmmError(message)`` unless ``condition`` holds."""
    if not condition:
        raise FedmmError(message)


def first_line(problem: BaseException) -> str:
    """Return the first line of another library's error message, or the error's class name if the message is empty."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]


def count_of(number: int, one: str, many: str = "") -> str:
    """Return ``1 seed`` or ``2 seeds`` for a message; many: the plural, by default ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
