"""Plan successive halving: which candidates run for how long, and what fits into a time budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedmm.core.errors import require

FEWEST_ROUNDS = 10
"""The fewest rounds of a first rung: after fewer, candidates can hardly be told apart."""
FIRST_SHARE = 3
"""A first rung has at least one in this many of all rounds: slow candidates must have begun to learn."""
_LONGER = 3
"""Each rung is this many times as long as the one before."""
_FEWEST_FINALISTS = 2
_PACE_ROUNDS = 5


@dataclass(frozen=True)
class Rung:
    """A rung. rounds: of every run. candidates: how many compete, besides those in every rung. seeds: per candidate."""

    rounds: int
    candidates: int
    seeds: int


@dataclass(frozen=True)
class Pace:
    """The cost of runs in seconds: per round of a run, per rung besides its rounds, and to write a run's results."""

    per_round: float
    per_rung: float
    per_run: float = 0.0


def count_halvings(candidates: int, rounds: int, eta: int) -> int:
    """Return how often the field is cut so that two finalists compete and the first rung has enough rounds."""
    require(eta >= 2, f"eta must be at least 2, not {eta}")
    fewest = max(FEWEST_ROUNDS, rounds // FIRST_SHARE)
    halvings, left, first = 0, -(-candidates // eta), rounds // _LONGER
    while left >= _FEWEST_FINALISTS and first >= fewest:
        halvings, left, first = halvings + 1, -(-left // eta), first // _LONGER
    return halvings


def plan_rungs(candidates: int, rounds: int, halvings: int, eta: int, seeds: int) -> list[Rung]:
    """Return the rungs: each keeps the best 1/eta (rounded up) for three times the rounds; the last runs all seeds."""
    return [
        Rung(
            max(1, rounds // _LONGER ** (halvings - number)),
            -(-candidates // eta**number),
            seeds if number == halvings else 1,
        )
        for number in range(halvings + 1)
    ]


def plan_whole(candidates: int, rounds: int, eta: int, seeds: int) -> list[Rung]:
    """Return the rungs without a time limit. candidates: how many compete; seeds: of each finalist."""
    return plan_rungs(candidates, rounds, count_halvings(candidates, rounds, eta), eta, seeds)


def count_pace_rounds(plan: Sequence[Rung]) -> int:
    """Return the rounds of every run that is timed before the first rung."""
    return min(plan[0].rounds, _PACE_ROUNDS)


def estimate_seconds(rungs: Sequence[Rung], always: int, pace: Pace) -> float:
    """Estimate the time that rungs take. always: the number of candidates in every rung besides those that compete."""

    def seconds(rung: Rung) -> float:
        runs = rung.seeds * (rung.candidates + always)
        return pace.per_rung + runs * (pace.per_round * rung.rounds + pace.per_run)

    return sum(seconds(rung) for rung in rungs)


def fit_rungs(rungs: Sequence[Rung], eta: int, always: int, pace: Pace, seconds: float, past: int = 0) -> list[Rung]:
    """Return the rungs with as many candidates as fit into the time; if a single one is too slow, with fewer rounds.

    If not even one round fits, the plan has one, and the clock ends it. past: the rounds of the rung before; the plan
    is empty if its first rung would have no more, since that would reveal nothing new.
    """
    last, halvings = rungs[-1], len(rungs) - 1

    def plan(candidates: int, rounds: int) -> list[Rung]:
        cuts = min(halvings, count_halvings(candidates, rounds, eta))
        return plan_rungs(candidates, rounds, cuts, eta, last.seeds)

    def fits(candidates: int, rounds: int) -> bool:
        return estimate_seconds(plan(candidates, rounds), always, pace) <= seconds

    most = rungs[0].candidates
    candidates = next((many for many in range(most, 0, -1) if fits(many, last.rounds)), min(1, most))
    rounds = last.rounds
    if not fits(candidates, rounds):
        rounds = next((each for each in range(rounds, 1, -1) if fits(candidates, each)), 1)
    fitted = plan(candidates, rounds)
    return fitted if fitted[0].rounds > past else []


def tell_left_out(candidates: int) -> str:
    """Say how many candidates are left out."""
    return "1 candidate is left out" if candidates == 1 else f"{candidates} candidates are left out"


class Budget:
    """A time budget in seconds, from now on; None for no limit."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._seconds = seconds

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._seconds is not None

    def spent(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self._began

    def left(self) -> float:
        """Return the seconds that are left; infinite without a limit."""
        return float("inf") if self._seconds is None else self._seconds - self.spent()

    def over(self) -> bool:
        """Return whether the time has run out."""
        return self.left() <= 0.0
