"""The errors a user can cause, and the words they are told in."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedmmError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that says what would be right."""


class Diverged(FedmmError):  # noqa: N818 - reads as what happened
    """A client produced a value that is not finite.

    client: its name; empty where every client was finite and their mean is not.
    partial: the result up to the last good round, as the call would have returned it.
    """

    def __init__(self, client: str, round: int) -> None:
        self.partial: object | None = None
        self.client = client
        self.round = round
        who = f"client {client!r} produced" if client else "the mean of the clients' uploads has"
        super().__init__(
            f"{who} non-finite parameters in round {round}: use smaller learning rates or larger penalties"
        )


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
