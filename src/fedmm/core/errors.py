"""The errors a user can cause, and the words they are told in."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

Say = Callable[[str], None]
"""Tells the user a line."""


class FedmmError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that says what would be right."""

    def __str__(self) -> str:
        """On one line: what cannot be printed, such as a line break in a file's name, is shown as an escape."""
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in super().__str__())


class Diverged(FedmmError):  # noqa: N818 - reads as what happened
    """A client produced a value that is not finite, or a round exploded.

    client: its name; empty if every client was finite and their mean is not. exploded: what was too large.
    reason: what happened, in words. partial: the result up to the last good round, as the call would have returned it.
    """

    def __init__(self, client: str, round: int, exploded: str = "") -> None:
        self.partial: object | None = None
        self.client = client
        self.round = round
        who = f"client {client!r} produced" if client else "the mean of the clients' uploads has"
        self.reason = exploded or f"{who} non-finite parameters"
        super().__init__(f"{self.reason} in round {round}: use smaller learning rates or larger penalties")


def unknown(what: str, given: str, known: Iterable[str]) -> FedmmError:
    """The error for a name that is not in a table, with the nearest name that is."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return FedmmError(f"unknown {what} {given!r}{hint} (known: {', '.join(names)})")


def require(condition: bool, message: str) -> None:
    """Raise ``FedmmError(message)`` unless ``condition`` holds."""
    if not condition:
        raise FedmmError(message)


def first_line(problem: BaseException) -> str:
    """The first line of another library's error; its name where it says nothing."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
