"""The clients of one actor, as it builds them for itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from fedmm.core.algorithm import Algorithm
from fedmm.core.federation import Terms
from fedmm.core.problem import FederatedProblem
from fedmm.engines.batched import Batched

StackClients = Callable[[Collection[str], Algorithm, int, Terms], Batched]
"""One program for the clients of these names, from the algorithm, the number of rounds, and the terms."""


@dataclass(frozen=True)
class Share:
    """What an actor works on.

    problem: with all clients of the federation; the actor asks its own alone to work.
    stack: makes one program of its clients; without it they work one after the other, as the reference has them.
    around: entered for all work, for example to set a precision.
    """

    problem: FederatedProblem
    stack: StackClients | None = None
    around: Callable[[], AbstractContextManager[None]] = nullcontext


ShareBuilder = Callable[[], Share]
"""Builds the clients where they are to work, data and all; Ray sends it there by pickling it."""
