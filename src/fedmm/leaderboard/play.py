"""Games, and runs of methods on them by the in-process engine."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.layout import Layout, Point
from fedmm.core.problem import FederatedProblem, LocalReport, Statistics
from fedmm.core.seeding import key, permutation
from fedmm.engines.in_process import InProcess
from fedmm.leaderboard.trials import Trace, Trial, count_gradients
from fedmm.training.history import Value
from fedmm.training.loop import RoundEvaluation, train
from fedmm.training.solve import default_names

ALL = -1
"""The number of the batch that holds all of a client's rows."""
_EXPLODED = 1e3
"""A run has diverged if its mean field ends at more than this many times its initial norm."""
_JUDGED = 10
"""The search judges a run by the last 1 / 10 of its rounds."""


@dataclass(frozen=True)
class Game:
    """min over omega, max over psi of the mean of the clients' f_i.

    fields: each client's signed field (df_i/d omega, -df_i/d psi) as a function of z and the number of a batch.
    start: (omega, psi). measure: the metric at a point z. batches: how many batches each client has.
    """

    fields: Sequence[Callable[[Tensor, int], Tensor]]
    start: tuple[Point, Point]
    measure: Callable[[Tensor], float]
    batches: int = 1

    @cached_property
    def layout(self) -> Layout:
        """The layout of omega and psi in z."""
        return Layout.of(*self.start)

    def mean_field(self, z: Tensor) -> Tensor:
        """Return the mean of the clients' fields on all their rows, which is 0 at a saddle."""
        return torch.stack([field(z, ALL) for field in self.fields]).mean(dim=0)

    def clients(self, seed: int) -> list[GameClient]:
        """Return the clients; the seed decides the order of their batches."""
        names = default_names(len(self.fields))
        return [GameClient(*parts, self.batches, seed) for parts in zip(names, self.fields, strict=True)]


@dataclass(frozen=True)
class GameClient:
    """A client whose field is a formula; it cycles through its batches, in a new order every epoch."""

    name: str
    field: Callable[[Tensor, int], Tensor]
    batches: int
    seed: int

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> GameRound:
        """Begin round t (from 0) with at most ``steps`` local steps."""
        return GameRound(self, first=t * steps)

    def batch(self, step: int) -> int:
        """Return the number of the batch of a step, counted from the start of the run."""
        if self.batches == 1:
            return ALL
        epoch, place = divmod(step, self.batches)
        return _order(self.seed, self.name, epoch, self.batches)[place]


@lru_cache(maxsize=64)
def _order(seed: int, name: str, epoch: int, batches: int) -> list[int]:
    order: list[int] = permutation(key(seed, "leaderboard", name, epoch), batches).tolist()
    return order


class GameRound:
    """One round of a :class:`GameClient`. first: the number of its first step."""

    def __init__(self, client: GameClient, first: int) -> None:
        self._client = client
        self._first = first

    def field(self, z: Tensor, step: int) -> Tensor:
        return self._client.field(z, self._client.batch(self._first + step))

    def close(self) -> LocalReport:
        return LocalReport()


def play(game: Game, trial: Trial, *, measured: bool) -> Trace:
    """Run a trial on a game. measured: whether to compute the metric after every round."""
    start = game.layout.pack(*game.start)
    problem = FederatedProblem(game.layout, start, game.clients(trial.seed), seed=trial.seed)
    judged = trial.length - max(1, trial.length // _JUDGED)

    def evaluate(state: FederatedState) -> dict[str, Value]:
        signal = float(game.mean_field(state.z).norm()) if state.round > judged else None
        value = game.measure(state.z) if measured else None
        return {"signal": signal, "value": value}

    engine = InProcess(problem, trial.algorithm, trial.rounds)
    training = train(engine, trial.length, evaluation=RoundEvaluation(evaluate, ("signal", "value")))
    if training.status == "interrupted":
        raise KeyboardInterrupt
    history = training.history
    signals = [float(value) for value in history["signal"] if value is not None]
    exploded = not signals or not signals[-1] <= _EXPLODED * float(game.mean_field(start).norm())
    return Trace(
        signals=signals,
        values=[math.nan if value is None else float(value) for value in history["value"]] if measured else [],
        bytes_up=[int(value or 0) for value in history["bytes_up"]],
        gradients=count_gradients(trial.algorithm, len(game.fields), trial.seed, len(history)),
        diverged=training.error is not None or exploded,
    )


class Played(ABC):
    """Base of problems that are games; a subclass builds the game."""

    stacked: ClassVar[bool] = False

    @abstractmethod
    def build(self, seed: int) -> Game:
        """Build the game of a seed, which decides its numbers too."""

    def require_ready(self) -> None:  # noqa: B027 - some games need data
        """Do nothing: most games need no data."""

    def search(self, trials: Sequence[Trial]) -> list[Trace]:
        return [play(self.build(trial.seed), trial, measured=False) for trial in trials]

    def run(self, trials: Sequence[Trial]) -> list[Trace]:
        return [play(self.build(trial.seed), trial, measured=True) for trial in trials]
