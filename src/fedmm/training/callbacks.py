"""Callbacks, which watch a training round by round, among them early stopping and the best model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.errors import Diverged, FedmmError, require
from fedmm.core.options import require_stopping
from fedmm.core.problem import Statistics
from fedmm.core.signals.validators import Validator, validator
from fedmm.training.history import History, Row, Value
from fedmm.training.snapshots import load_snapshot, save_snapshot

Status = Literal["completed", "interrupted", "diverged"]


class Stopped(TypedDict):
    """The round in which a run was stopped, by what, and why."""

    round: int
    by: str
    reason: str


@dataclass(frozen=True)
class Training:
    """The result of a training.

    state: after the last good round. status: why training ended. error: what diverged. stopped: which callback ended it
    early, if any. best: the model of its best round by a validator, if one was named.
    """

    state: FederatedState
    history: History
    status: Status
    error: Diverged | None = None
    stopped: Stopped | None = None
    best: Best | None = None


class Callback:
    """Watches a training; override the methods you need, and pass it to :func:`fedmm.adapt` in ``callbacks``.

    If several replicas run as one program, each has its own callbacks. The rows of a few rounds may then arrive
    together, and states are read from the device only after rounds for which a callback wants one.

    stopped: the round in which the callback ended the training, and why; see :meth:`stop`.
    """

    stopped: Stopped | None = None

    def begin(self, state: FederatedState, history: History) -> None:
        """Called before the first round, also after a resume. The history grows as training goes on.

        state: the state that the first round starts from.
        """

    def wants_state(self, round_: int) -> bool:
        """Return whether :meth:`after_round` needs the state after this round; False if rows are enough."""
        return True

    def columns(self, record: RoundRecord) -> Mapping[str, Value]:
        """Return columns to add to the row of a round."""
        return {}

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        """Called after every round with its row of the history.

        state: the federation after the round; None if no callback wanted it.
        """

    def close(self, training: Training | None) -> None:
        """Called once at the end. training: its result; None if an unexpected error ended it."""

    def stop(self, round_: int, reason: str) -> None:
        """End the training after this round."""
        self.stopped = Stopped(round=round_, by=type(self).__name__, reason=reason)


class OnRound(Callback):
    """Calls a function with every row."""

    def __init__(self, function: Callable[[Row], None]) -> None:
        self._function = function

    def wants_state(self, round_: int) -> bool:
        return False

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        self._function(row)


class RunLog:
    """One run's history and the callbacks that watch it."""

    def __init__(self, callbacks: Iterable[Callback], history: History) -> None:
        self.history = history
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            require(isinstance(callback, Callback), f"a callback must be a fedmm.Callback, not {callback!r:.60}")

    @property
    def stopped(self) -> Stopped | None:
        """The round in which a callback ended the run, and why; None if none did."""
        return next((callback.stopped for callback in self.callbacks if callback.stopped), None)

    def begin(self, state: FederatedState) -> None:
        for callback in self.callbacks:
            callback.stopped = None
            callback.begin(state, self.history)

    def wants_state(self, round_: int) -> bool:
        return any(callback.wants_state(round_) for callback in self.callbacks)

    def add(self, record: RoundRecord, evaluation: Mapping[str, Value], **about: Any) -> Row:
        """Add a round to the history; ``about`` goes to :meth:`History.append`."""
        for callback in self.callbacks:
            evaluation = {**evaluation, **callback.columns(record)}
        return self.history.append(record, evaluation, **about)

    def tell(self, state: FederatedState | None, row: Row) -> None:
        for callback in self.callbacks:
            callback.after_round(state, row)

    def close(self, training: Training | None) -> None:
        for callback in self.callbacks:
            callback.close(training)


@dataclass
class EarlyStopping(Callback):
    """Ends a training before its last round when a validator no longer improves.

    It depends only on the history, so a resumed training ends in the same round.

    stop_by: the validator's name; empty to never stop. patience: rounds without improvement before the training ends.
    min_rounds: rounds that are always run. min_delta: an improvement must exceed this to count.
    """

    stop_by: str = ""
    patience: int = 50
    min_rounds: int = 0
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        require_stopping(self.stop_by, self.patience, self.min_rounds, self.min_delta)
        self._by = validator(self.stop_by, "stop_by") if self.stop_by else None

    def begin(self, state: FederatedState | None, history: Iterable[Row]) -> None:
        """Replay the rounds so far."""
        self._best: float | None = None
        self._since = 0
        for row in history:
            self.after_round(None, row)

    def wants_state(self, round_: int) -> bool:
        """Return False: rows are enough."""
        return False

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        """Check a round; skip one that was not evaluated."""
        value = row.get(self._by.column) if self._by else None
        if self._by is None or value is None or self.stopped:
            return
        round_ = int(row["round"] or 0)
        if self._by.better(value, self._best, self.min_delta):
            self._best, self._since = value, round_
        elif round_ - self._since >= self.patience and round_ >= self.min_rounds:
            self.stopped = Stopped(round=round_, by=self._by.name, reason=self._reason(round_))

    def _reason(self, round_: int) -> str:
        if self._best is None or not math.isfinite(self._best):
            return f"{self.stop_by} could not be measured, or was not finite, up to round {round_}"
        more = f" by more than {self.min_delta:g}" if self.min_delta else ""
        return (
            f"{self.stop_by} was {self._best:.4g} in round {self._since} and has not improved{more} in the "
            f"{round_ - self._since} rounds since"
        )


@dataclass(frozen=True, eq=False)
class Best:
    """The server's model after a round. row: of the history; statistics: those used for predictions."""

    by: Validator
    row: Row
    z: Tensor
    statistics: Statistics

    @property
    def round(self) -> int:
        return int(self.row["round"] or 0)

    @property
    def value(self) -> float:
        """The validator's value."""
        value = self.row[self.by.column]
        assert value is not None
        return value


class BestModel(Callback):
    """Keeps the model that is best by a validator; of equals, the first.

    by: the validator's name, empty to keep none. statistics: maps a state to the statistics used for predictions.
    """

    def __init__(
        self, by: str, statistics: Callable[[FederatedState], Statistics] = lambda state: state.statistics
    ) -> None:
        self.by = validator(by, "best_by") if by else None
        self.best: Best | None = None
        self._statistics = statistics
        self._written: Best | None = None

    @property
    def file(self) -> str:
        """The name of the best model's file."""
        return best_file(self.by)

    @property
    def unwritten(self) -> bool:
        """Whether the best model is not on disk yet."""
        return self.best is not self._written

    def wants(self, row: Row) -> bool:
        """Return whether a round is better than all before."""
        value = row.get(self.by.column) if self.by else None
        before = self.best.value if self.best else None
        return value is not None and self.by is not None and self.by.better(value, before)

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        if state is not None and self.wants(row):
            self.take(row, state.model, self._statistics(state))

    def take(self, row: Row, z: Tensor, statistics: Statistics) -> None:
        """Make this round's model the best one."""
        assert self.by is not None
        self.best = Best(self.by, row, z, statistics)

    def write(self, folder: Path) -> None:
        """Write the best model beside the checkpoints, unless it is there."""
        if self.best is not None and self.unwritten:
            best = self.best
            state = FederatedState(best.round, {"z": best.z}, {}, best.statistics)
            save_snapshot(folder / self.file, state, History([best.row]))
            self._written = best

    def read(self, folder: Path, device: torch.device) -> None:
        """Load the best model beside the checkpoints, if there is one."""
        try:
            state, history = load_snapshot(folder / self.file, device)
        except FedmmError:
            return
        if len(history) and self.wants(history[-1]):
            self.take(history[-1], state.z, state.statistics)
            self._written = self.best


def best_model_in(callbacks: Iterable[Callback]) -> BestModel | None:
    """Return the callback that keeps the best model; None if there is none."""
    return next((callback for callback in callbacks if isinstance(callback, BestModel)), None)


def best_file(by: Validator | None, before: str = "") -> str:
    """Return the name of a best model's file; it contains ``oracle`` if target labels chose the model."""
    return f"{before}{'oracle-' if by is not None and by.oracle else ''}best.safetensors"
