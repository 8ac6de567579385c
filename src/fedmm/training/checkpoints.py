"""A run's checkpoints: the last few states and the best one, each a file that is whole or not there."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError
from fedmm.training.client_files import Parts
from fedmm.training.history import History
from fedmm.training.loop import Begun
from fedmm.training.selection import Chooser
from fedmm.training.snapshots import load_snapshot, parts_of, save_snapshot

FOLDER = "checkpoints"
_NAME = re.compile(r"round-(\d+)\.safetensors")
_HALF_WRITTEN = ("*.safetensors.partial", ".tmp*")  # ours, and those of safetensors

Say = Callable[[str], None]


class Checkpoints:
    """Written every so many rounds, or every so many seconds, into ``checkpoints/`` of a run's folder.

    every: rounds between two, 0 to go by time alone; seconds: between two, 0 to go by rounds alone.
    keep: how many of the last are kept. best: what knows the best model, which is kept beside them.
    in_parts: have single clients' tensors in files that the checkpoints share, which are written when they change.
    """

    def __init__(
        self,
        run: Path,
        *,
        every: int,
        seconds: float,
        keep: int,
        best: Chooser | None = None,
        in_parts: bool = False,
    ) -> None:
        self.folder = run / FOLDER
        self.best = best or Chooser("")
        self._every, self._seconds, self._keep = every, seconds, keep
        self._written = time.monotonic()
        self._newest = -1
        self._parts = Parts(self.folder) if in_parts else None
        self._named: dict[int, set[str]] = {}

    def due(self, round_: int) -> bool:
        """Whether it is time for one after this round."""
        by_round = self._every > 0 and round_ % self._every == 0
        return by_round or (self._seconds > 0 and time.monotonic() - self._written >= self._seconds)

    def after_round(self, state: FederatedState, history: History) -> None:
        """Write a checkpoint where it is time for one."""
        if self.due(state.round):
            self.save(state, history)

    def close(self, state: FederatedState, history: History) -> None:
        """Write the state that the run ends with, unless it is there."""
        if state.round != self._newest or self.best.unwritten:
            self.save(state, history)

    def save(self, state: FederatedState, history: History) -> None:
        """Write one, and remove those that are too many."""
        self.write(state, history)
        self.tidy()

    def write(self, state: FederatedState, history: History) -> None:
        """Write one beside the others; the best goes first, as nothing after this one would lead to it again."""
        self.best.write(self.folder)
        self._named[state.round] = save_snapshot(self._path(state.round), state, history, self._parts)
        self._newest = state.round
        self._written = time.monotonic()

    def tidy(self) -> None:
        """Remove what is older than the last few, newer than the last (it was of no use), or half written."""
        rounds = self.rounds()
        newer = [round_ for round_ in rounds if round_ > self._newest]
        try:
            for round_ in newer + rounds[len(newer) + self._keep :]:
                self._path(round_).unlink(missing_ok=True)
        except OSError as problem:
            raise FedmmError(f"old checkpoints in {self.folder} cannot be removed: {problem.strerror}") from problem
        if self._parts:
            self._named = {round_: self._names(round_) for round_ in self.rounds()}
            self._parts.keep_only(set().union(*self._named.values()))
        for left in (each for pattern in _HALF_WRITTEN for each in self.folder.glob(pattern)):
            with suppress(OSError):
                left.unlink()

    def rounds(self) -> list[int]:
        """The rounds after which there are checkpoints, the newest first."""
        try:
            found = [_NAME.fullmatch(path.name) for path in self.folder.iterdir()]
        except OSError:
            return []
        return sorted((int(name[1]) for name in found if name), reverse=True)

    def load(self, round_: int, device: torch.device) -> Begun:
        """The checkpoint after a round; refused where it cannot be read."""
        return load_snapshot(self._path(round_), device)

    def go_on(self, round_: int, device: torch.device) -> None:
        """Know that the run goes on from this checkpoint, and which model is the best so far."""
        self._newest = round_
        self.best.read(self.folder, device)

    def _names(self, round_: int) -> set[str]:
        """The parts that a checkpoint is made of."""
        return self._named[round_] if round_ in self._named else parts_of(self._path(round_))

    def _path(self, round_: int) -> Path:
        return self.folder / f"round-{round_:08d}.safetensors"


def newest_common(runs: Sequence[Checkpoints], device: torch.device, say: Say) -> list[Begun]:
    """A state and its history for each run, all after the newest round that all have and that can be read; else none.

    A run that had diverged, or was ended early, has stopped: its last state counts for every later round. Files that
    cannot be read are named, and the round before is tried.
    """
    read: dict[tuple[int, int], Begun | None] = {}

    def load(run: int, round_: int) -> Begun | None:
        if (run, round_) not in read:
            try:
                read[run, round_] = _before_the_next(runs[run].load(round_, device))
            except FedmmError as problem:
                say(f"{problem}; the checkpoint before it is tried")
                read[run, round_] = None
        return read[run, round_]

    there = [each.rounds() for each in runs]

    def at(run: int, round_: int) -> Begun | None:
        if round_ in there[run]:
            return load(run, round_)
        earlier = (load(run, each) for each in there[run] if each < round_)
        return next((begun for begun in earlier if begun and begun[0].ended), None)

    for round_ in sorted({each for rounds in there for each in rounds}, reverse=True):
        found: list[Begun] = []
        for run in range(len(runs)):
            begun = at(run, round_)
            if begun is None:
                break
            found.append(begun)
        else:
            for each, (state, _) in zip(runs, found, strict=True):
                each.go_on(state.round, device)
            return found
    return []


def _before_the_next(begun: Begun) -> Begun:
    """Without what a guard did in the round after, which is run again unless the run has stopped there."""
    state, history = begun
    if state.offender is None:
        history.events[:] = [event for event in history.events if event["round"] <= state.round]
    return state, history
