"""Choosing by a validator while a run goes on: the best model so far, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError
from fedmm.core.problem import Statistics
from fedmm.core.validation import at_least, not_negative
from fedmm.core.validators import Validator, validator
from fedmm.training.history import History, Row
from fedmm.training.snapshots import load_snapshot, save_snapshot

DEFAULT = "target_information"


@dataclass(frozen=True, eq=False)
class Best:
    """The server's model of a round. row: of the history; statistics: those that predictions use."""

    by: Validator
    row: Row
    z: Tensor
    statistics: Statistics

    @property
    def round(self) -> int:
        return int(self.row["round"] or 0)

    @property
    def value(self) -> float:
        """What the validator measured."""
        value = self.row[self.by.column]
        assert value is not None
        return value


class Chooser:
    """Keeps the model that is best by a validator; of equals, the first. by: its name, empty to keep none."""

    def __init__(self, by: str) -> None:
        self.by = validator(by, "best_by") if by else None
        self.best: Best | None = None
        self._written: Best | None = None

    @property
    def file(self) -> str:
        """The name of its checkpoint."""
        return best_file(self.by)

    @property
    def unwritten(self) -> bool:
        """Whether there is a best that the checkpoint is not."""
        return self.best is not self._written

    def wants(self, row: Row) -> bool:
        """Whether a round is better than all before."""
        value = row.get(self.by.column) if self.by else None
        before = self.best.value if self.best else None
        return value is not None and self.by is not None and self.by.better(value, before)

    def take(self, row: Row, z: Tensor, statistics: Statistics) -> None:
        """Have this round's model for the best one."""
        assert self.by is not None
        self.best = Best(self.by, row, z, statistics)

    def write(self, folder: Path) -> None:
        """Keep the best model among checkpoints."""
        if self.best is not None and self.unwritten:
            best = self.best
            state = FederatedState(best.round, {"z": best.z}, {}, best.statistics)
            save_snapshot(folder / self.file, state, History([best.row]))
            self._written = best

    def read(self, folder: Path, device: torch.device) -> None:
        """Go on with the best model among checkpoints, where there is one."""
        try:
            state, history = load_snapshot(folder / self.file, device)
        except FedmmError:
            return
        if len(history) and self.wants(history[-1]):
            self.take(history[-1], state.z, state.statistics)
            self._written = self.best


def best_file(by: Validator | None, before: str = "") -> str:
    """The name of a file with what was chosen; chosen with target labels, it says so."""
    return f"{before}{'oracle-' if by is not None and by.oracle else ''}best.safetensors"


class Stopped(TypedDict):
    """In which round a run was stopped, by which validator, and why."""

    round: int
    by: str
    reason: str


@dataclass(frozen=True)
class Stopping:
    """When a run is ended before its last round.

    stop_by: the validator that is looked at; empty: never. patience: rounds without a better value after which it ends.
    min_rounds: that are run in any case. min_delta: a value is better when it is so by more than this.
    """

    stop_by: str = ""
    patience: int = 50
    min_rounds: int = 0
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.stop_by:
            validator(self.stop_by, "stop_by")
        at_least("patience", self.patience, 1)
        at_least("min_rounds", self.min_rounds, 0)
        not_negative("min_delta", self.min_delta)


class Patience:
    """How long a run may still go on. All of it follows from the history, so that a run can be gone on with.

    stopped: since when it may not; None while it may.
    """

    def __init__(self, stopping: Stopping, before: Iterable[Row] = ()) -> None:
        self._stopping = stopping
        self._by = validator(stopping.stop_by, "stop_by") if stopping.stop_by else None
        self._best: float | None = None
        self._since = 0
        self.stopped: Stopped | None = None
        for row in before:
            self.look(row)

    def look(self, row: Row) -> None:
        """Look at a round; one that was not evaluated tells nothing."""
        value = row.get(self._by.column) if self._by else None
        if self._by is None or value is None or self.stopped:
            return
        round_ = int(row["round"] or 0)
        if self._by.better(value, self._best, self._stopping.min_delta):
            self._best, self._since = value, round_
        elif round_ - self._since >= self._stopping.patience and round_ >= self._stopping.min_rounds:
            self.stopped = Stopped(round=round_, by=self._by.name, reason=self._reason(round_))

    def _reason(self, round_: int) -> str:
        if self._best is None or not math.isfinite(self._best):
            return f"{self._by and self._by.name} was not finite in {round_} rounds"
        more = f" by more than {self._stopping.min_delta:g}" if self._stopping.min_delta else ""
        return (
            f"{self._by and self._by.name} was {self._best:.4g} in round {self._since} and no better{more} in the "
            f"{round_ - self._since} rounds since"
        )
