"""The leaderboard's problems, and what a run on one records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, Protocol

from fedmm.algorithms import ALGORITHMS
from fedmm.core.algorithm import Algorithm, first_exchange
from fedmm.core.layout import Layout

SEARCH_SEED = 1000
"""The seed of the runs that choose options; reported runs have lower seeds."""
LOCAL_STEPS = 10
"""Local steps per round for every method that takes more than one; the mean number if it is drawn."""


@dataclass(frozen=True)
class Trial:
    """A run to make: a method with its options, the seed, and the planned number of rounds.

    stop: how many of them to run; 0 for all.
    """

    method: str
    options: Mapping[str, Any]
    seed: int
    rounds: int
    stop: int = 0

    @property
    def algorithm(self) -> Algorithm:
        """The method with its options, and the common number of local steps."""
        kind = ALGORITHMS[self.method]
        known = {field.name for field in fields(kind)}
        options: dict[str, Any] = {name: LOCAL_STEPS for name in ("local_steps", "mean_steps") if name in known}
        return kind(**options, **self.options)

    @property
    def length(self) -> int:
        """The number of rounds to run."""
        return self.stop or self.rounds


@dataclass(frozen=True)
class Trace:
    """What a run recorded.

    signals: the training signal in the last rounds; lower is better. values: the metric after each round, NaN if it was
        not measured.
    bytes_up, gradients: of all clients together, per round. diverged: whether the run was not finite, or exploded.
    """

    signals: Sequence[float] = ()
    values: Sequence[float] = ()
    bytes_up: Sequence[int] = ()
    gradients: Sequence[int] = ()
    diverged: bool = False


@dataclass(frozen=True)
class Goal:
    """What a problem measures: the metric in words, the value that is good enough, and whether higher is better."""

    metric: str
    target: float
    higher: bool = False

    def reached_by(self, value: float) -> bool:
        """Return whether a value is good enough."""
        return value >= self.target if self.higher else value <= self.target


class Problem(Protocol):
    """A minimax problem that every method runs on. Its fields are its options, and are stored with its results."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str:
        """The problem in words, with its options."""

    @property
    def goal(self) -> Goal: ...

    @property
    def rates(self) -> tuple[float, float]:
        """The smallest and largest lr_min to try."""

    @property
    def rounds(self) -> int:
        """Rounds of a method that uploads one vector per round; one that uploads two has half as many."""

    @property
    def stacked(self) -> bool:
        """Whether several trials run faster together."""

    def require_ready(self) -> None:
        """Raise a ``FedmmError`` if the problem cannot be run here."""

    def search(self, trials: Sequence[Trial]) -> list[Trace]:
        """Run trials of one length for their training signals alone, without revealing the metric."""

    def run(self, trials: Sequence[Trial]) -> list[Trace]:
        """Run trials of one length, and measure the metric."""


def compared_methods() -> list[str]:
    """Return the methods that seek the saddle of the clients' mean; those that weigh clients solve another problem."""
    return [name for name, kind in ALGORITHMS.items() if not kind.weighs_clients]


def uploads(method: str) -> int:
    """Return how many vectors a client of a method uploads per round."""
    layout = Layout({"x": (1,)}, {"y": (1,)})
    upload, _ = first_exchange(ALGORITHMS[method](), layout, layout.join(0.0, 0.0).expand(2).clone())
    return len(upload)


def count_gradients(algorithm: Algorithm, clients: int, seed: int, rounds: int) -> list[int]:
    """Return the number of local gradients of all clients in each round; a method that looks takes two per step."""
    steps = algorithm.steps
    own = steps if isinstance(steps, int) else LOCAL_STEPS
    gradients = 2 if algorithm.looks else 1
    return [gradients * clients * algorithm.steps_in(own, seed, t) for t in range(rounds)]


@dataclass(frozen=True)
class Cost:
    """What a run had spent when it first reached the target: bytes uploaded and gradients computed, by all clients."""

    bytes_up: int
    gradients: int
    round: int


def cost_to(goal: Goal, trace: Trace) -> Cost | None:
    """Return the cost of reaching the target; None if the run did not."""
    spent = zip(accumulate(trace.bytes_up), accumulate(trace.gradients), trace.values, strict=True)
    for round_, (bytes_up, gradients, value) in enumerate(spent, start=1):
        if goal.reached_by(value):
            return Cost(bytes_up, gradients, round_)
    return None
