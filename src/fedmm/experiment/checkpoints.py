"""A run's checkpoints: the last few states and the best one, each a file that is whole or not there."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError
from fedmm.experiment.history import History
from fedmm.experiment.snapshots import load_snapshot, save_snapshot

FOLDER, BEST = "checkpoints", "best.safetensors"
_NAME = re.compile(r"round-(\d+)\.safetensors")
_LOWER_IS_BETTER = ("source_risk", "target_entropy", "loss", "task_loss")

Say = Callable[[str], None]


class Checkpoints:
    """Written every so many rounds, or every so many seconds, into ``checkpoints/`` of a run's folder.

    every: rounds between two, 0 to go by time alone; seconds: between two, 0 to go by rounds alone.
    keep: how many of the last are kept. best_by: the measure of the history by which the best is kept beside them.
    """

    def __init__(self, run: Path, *, every: int, seconds: float, keep: int, best_by: str) -> None:
        self.folder = run / FOLDER
        self._every, self._seconds, self._keep, self._best_by = every, seconds, keep, best_by
        self._written = time.monotonic()
        self._best = math.nan
        self._unwritten: tuple[FederatedState, History] | None = None

    def due(self, round_: int) -> bool:
        """Whether it is time for one after this round."""
        by_round = self._every > 0 and round_ % self._every == 0
        return by_round or (self._seconds > 0 and time.monotonic() - self._written >= self._seconds)

    def observe(self, state: FederatedState, history: History) -> None:
        """Look at a round that was just evaluated: it may be the best so far, which the next save writes."""
        value = history[-1].get(self._best_by) if self._best_by and len(history) else None
        if value is None or not math.isfinite(value):
            return
        better = value < self._best if self._best_by in _LOWER_IS_BETTER else value > self._best
        if better or math.isnan(self._best):
            self._best, self._unwritten = value, (state, History(list(history)))

    def save(self, state: FederatedState, history: History) -> None:
        """Write one, and remove those that are too many; the one before goes only when this one is on disk."""
        save_snapshot(self.folder / f"round-{state.round:08d}.safetensors", state, history)
        if self._unwritten:
            save_snapshot(self.folder / BEST, *self._unwritten)
            self._unwritten = None
        for old in self._numbered()[self._keep :]:
            old.unlink(missing_ok=True)
        self._written = time.monotonic()

    def newest(self, device: torch.device, say: Say) -> tuple[FederatedState, History] | None:
        """The newest state that can be read; those that cannot are named, and the one before is tried."""
        for path in self._numbered():
            try:
                state, history = load_snapshot(path, device)
            except FedmmError as problem:
                say(f"{problem}; the checkpoint before it is tried")
                continue
            self._remember_best()
            return state, history
        return None

    def _remember_best(self) -> None:
        try:
            _, history = load_snapshot(self.folder / BEST, torch.device("cpu"))
        except FedmmError:
            return
        value = history[-1].get(self._best_by) if len(history) else None
        self._best = math.nan if value is None else value

    def _numbered(self) -> list[Path]:
        """The checkpoints by round, the newest first."""
        try:
            names = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        except OSError:
            return []
        return sorted(names, reverse=True)
