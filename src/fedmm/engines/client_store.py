"""A client's own states, until it is known which one the server counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedmm.core.algorithm import State
from fedmm.core.problem import Statistics
from fedmm.core.validation import at_least


class Kept(NamedTuple):
    """What a client keeps after a round: the algorithm's state, and its running statistics."""

    own: State
    statistics: Statistics


class ClientMemory:
    """The states after a client's last rounds, by round.

    A client cannot know whether its upload was counted: it may be lost, late or refused. So it keeps its new state
    beside the old one, *before* it uploads, and goes on from whichever the server says was counted. Then what the
    client adds up and what the server adds up stay equal whatever fails in between.

    depth: how many states are kept, at least 2. A server that goes back several rounds after a crash needs that many
        more, or has to restore the client from the sums it keeps.
    held: states to begin with, for example from a file.
    """

    def __init__(self, held: Mapping[int, Kept] | None = None, *, depth: int = 2) -> None:
        at_least("depth", depth, 2)
        self._held = dict(held or {})
        self._depth = depth

    @property
    def held(self) -> Mapping[int, Kept]:
        """The states by round: what a client must store to survive a crash."""
        return self._held

    def state_for(self, counted: int) -> Kept | None:
        """The state after the round in which the server last counted this client; None where it is lost.

        What came of later rounds was not counted, and never will be.
        """
        self._held = {round: kept for round, kept in self._held.items() if round <= counted}
        return self._held.get(counted)

    def remember(self, round: int, kept: Kept) -> None:
        """Keep the state after a round, and of the older ones the newest."""
        newest = sorted({**self._held, round: kept}.items())[-self._depth :]
        self._held = dict(newest)

    def forget(self, round: int) -> None:
        """Lose a state, as a client does that restarts from an older copy of its files."""
        self._held.pop(round, None)
