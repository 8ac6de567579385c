"""A run's checkpoints: the last few states and the best model, each in a file that is written atomically."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.files import write_json
from fedmm.core.options import TrainOptions
from fedmm.training.adaptation import Adaptation
from fedmm.training.callbacks import BestModel, Callback, Training
from fedmm.training.fingerprint import differences, fingerprint, refuse_others
from fedmm.training.history import History, Row
from fedmm.training.snapshots import Parts, ResumePoint, load_snapshot, parts_of, save_snapshot

FOLDER = "checkpoints"
ABOUT = "adaptation.json"
"""The file beside the checkpoints that identifies a call of ``fedmm.adapt``."""
_NAME = re.compile(r"round-(\d+)\.safetensors")
_HALF_WRITTEN = ("*.safetensors.partial", ".tmp*")  # ours, and those of safetensors


class Checkpoints(Callback):
    """Writes checkpoints every few rounds or seconds into ``checkpoints/`` of a run's folder.

    every: rounds between two checkpoints, 0 to go by time alone; seconds: between two, 0 to go by rounds alone.
    keep: how many to keep. best: the callback that holds the best model, which is written beside them.
    in_parts: store single clients' tensors in files shared by the checkpoints, which are written only when they change.
    together: the checkpoints of all runs of one program, which are written after the same rounds. Old ones are removed
        only when all are written, so that the runs always have checkpoints of a common round.
    """

    def __init__(
        self,
        run: Path,
        *,
        every: int,
        seconds: float,
        keep: int,
        best: BestModel | None = None,
        in_parts: bool = False,
    ) -> None:
        self.folder = run / FOLDER
        self.best = best or BestModel("")
        self._every, self._seconds, self._keep = every, seconds, keep
        self._written = time.monotonic()
        self._newest = -1
        self._parts = Parts(self.folder) if in_parts else None
        self._named: dict[int, set[str]] = {}
        self.together: Sequence[Checkpoints] = (self,)
        self._history = History()
        self._ended = self._closed = self._untidy = False

    def due(self, round_: int) -> bool:
        """Return whether a checkpoint is due after this round."""
        by_round = self._every > 0 and round_ % self._every == 0
        return by_round or (self._seconds > 0 and time.monotonic() - self._written >= self._seconds)

    def begin(self, state: FederatedState, history: History) -> None:
        self._history, self._closed = history, False

    def wants_state(self, round_: int) -> bool:
        return self.due(round_)

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        """Write a checkpoint if one is due, here or in another run of the same program."""
        if state is not None and any(run._saves(state.round) for run in self.together):
            self.write(state, self._history)
            self._tidy_together()

    def close(self, training: Training | None) -> None:
        """Write the run's last state, unless it is written already."""
        if training is not None:
            state = training.state
            if (state.round, state.ended) != (self._newest, self._ended) or self.best.unwritten:
                self.write(state, training.history)
            self._closed = True
            self._tidy_together()

    def _saves(self, round_: int) -> bool:
        return round_ == self._newest or (not self._closed and self.due(round_))

    def _tidy_together(self) -> None:
        newest = max(run._newest for run in self.together)
        if all(run._closed or run._newest == newest for run in self.together):
            for run in self.together:
                if run._untidy:
                    run.tidy()

    def save(self, state: FederatedState, history: History) -> None:
        """Write a checkpoint, and remove surplus ones."""
        self.write(state, history)
        self.tidy()

    def write(self, state: FederatedState, history: History) -> None:
        """Write a checkpoint; the best model goes first, because a run resumed from here would not find it again."""
        self.best.write(self.folder)
        self._named[state.round] = save_snapshot(self._path(state.round), state, history, self._parts)
        self._newest, self._ended = state.round, state.ended
        self._untidy = True
        self._written = time.monotonic()

    def tidy(self) -> None:
        """Remove files older than the last few, newer than the current one (they were unusable), or half written."""
        self._untidy = False
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
        for left in (path for pattern in _HALF_WRITTEN for path in self.folder.glob(pattern)):
            with suppress(OSError):
                left.unlink()

    def rounds(self) -> list[int]:
        """Return the rounds that have checkpoints, newest first."""
        try:
            found = [_NAME.fullmatch(path.name) for path in self.folder.iterdir()]
        except OSError:
            return []
        return sorted((int(name[1]) for name in found if name), reverse=True)

    def load(self, round_: int, device: torch.device) -> ResumePoint:
        """Load the checkpoint after a round; refuse one that cannot be read."""
        return load_snapshot(self._path(round_), device)

    def go_on(self, state: FederatedState, device: torch.device) -> None:
        """Note that the run continues from this checkpoint, and load the best model so far."""
        self._newest, self._ended = state.round, state.ended
        self.best.read(self.folder, device)

    def _names(self, round_: int) -> set[str]:
        return self._named[round_] if round_ in self._named else parts_of(self._path(round_))

    def _path(self, round_: int) -> Path:
        return self.folder / f"round-{round_:08d}.safetensors"


def newest_common(runs: Sequence[Checkpoints], device: torch.device, say: Say) -> list[ResumePoint]:
    """Return each run's state and history after the newest round that all runs can load; empty if there is none.

    A run that diverged or ended early has stopped: its last state counts for every later round. Files that cannot be
    read are reported by ``say``, and the round before is tried.
    """
    read: dict[tuple[int, int], ResumePoint | None] = {}

    def load(run: int, round_: int) -> ResumePoint | None:
        if (run, round_) not in read:
            try:
                read[run, round_] = _before_the_next(runs[run].load(round_, device))
            except FedmmError as problem:
                say(f"{problem}; trying the one before it")
                read[run, round_] = None
        return read[run, round_]

    by_run = [run.rounds() for run in runs]

    def at(run: int, round_: int) -> ResumePoint | None:
        if round_ in by_run[run]:
            return load(run, round_)
        earlier = (load(run, each) for each in by_run[run] if each < round_)
        return next((point for point in earlier if point and point[0].ended), None)

    for round_ in sorted({round_ for rounds in by_run for round_ in rounds}, reverse=True):
        found: list[ResumePoint] = []
        for run in range(len(runs)):
            point = at(run, round_)
            if point is None:
                break
            found.append(point)
        else:
            for checkpoints, (state, _) in zip(runs, found, strict=True):
                checkpoints.go_on(state, device)
            return found
    return []


def _before_the_next(point: ResumePoint) -> ResumePoint:
    """Drop a guard's events of later rounds, which will be run again, unless the run has stopped there."""
    state, history = point
    if state.offender is None:
        history.events[:] = [event for event in history.events if event["round"] <= state.round]
    return state, history


def checkpoints_of(
    options: TrainOptions, folder: Path, best: BestModel | None = None, *, in_parts: bool = False
) -> Checkpoints:
    """Return the checkpoints of a run by its options, with the best model beside them."""
    every, seconds, keep = options.checkpoint_every, options.checkpoint_seconds, options.keep_checkpoints
    return Checkpoints(folder, every=every, seconds=seconds, keep=keep, best=best, in_parts=in_parts)


def open_call_folder(
    folder: str | Path, adaptation: Adaptation, best: BestModel
) -> tuple[Checkpoints, ResumePoint | None, list[str]]:
    """Open the folder of a call of :func:`fedmm.adapt`; refuse one of another call.

    Return its checkpoints, the point to resume from (None to start afresh), and warnings about unreadable files.
    """
    require(isinstance(folder, str | Path), f"resume must be a folder's name, not {folder!r}")
    folder = Path(folder)
    checkpoints = checkpoints_of(adaptation.options, folder, best)
    now = json.loads(json.dumps(fingerprint(adaptation)))
    if not (folder / ABOUT).exists():
        require(
            not (folder / FOLDER).exists(),
            f"{folder} holds checkpoints that are not from fedmm.adapt; name another folder with resume",
        )
        write_json(folder / ABOUT, now)
        return checkpoints, None, []
    try:
        before = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        found = differences(before, now)
    except (OSError, ValueError, AttributeError, TypeError) as problem:
        raise FedmmError(f"{folder / ABOUT} cannot be read; name another folder with resume") from problem
    refuse_others([_with_hint(difference) for difference in found], f"the run in {folder}")
    said: list[str] = []
    points = newest_common([checkpoints], adaptation.function.layout.device, said.append)
    if said and not points:
        said.append(f"{folder} holds no checkpoint that can be read; the run starts again")
    return checkpoints, points[0] if points else None, said


def _with_hint(difference: str) -> str:
    hint = " (call torch.manual_seed before the network is made)"
    return difference + (hint if difference.startswith("model.weights ") else "")
