"""A run's checkpoints: the last few states and the best one, each a file that is whole or not there."""

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
"""What a call of ``fedmm.adapt`` keeps beside its checkpoints, to be known again."""
_NAME = re.compile(r"round-(\d+)\.safetensors")
_HALF_WRITTEN = ("*.safetensors.partial", ".tmp*")  # ours, and those of safetensors


class Checkpoints(Callback):
    """Written every so many rounds, or every so many seconds, into ``checkpoints/`` of a run's folder.

    every: rounds between two, 0 to go by time alone; seconds: between two, 0 to go by rounds alone.
    keep: how many of the last are kept. best: what knows the best model, which is kept beside them.
    in_parts: have single clients' tensors in files that the checkpoints share, which are written when they change.
    together: those of the runs of one program, which are written after the same rounds. Old ones are removed when all
        are written: whatever happens meanwhile, all runs have those of one round.
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
        """Whether it is time for one after this round."""
        by_round = self._every > 0 and round_ % self._every == 0
        return by_round or (self._seconds > 0 and time.monotonic() - self._written >= self._seconds)

    def begin(self, state: FederatedState, history: History) -> None:
        self._history, self._closed = history, False

    def wants_state(self, round_: int) -> bool:
        return self.due(round_)

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        """Write a checkpoint where it is time for one, here or in a run of the same program."""
        if state is not None and any(run._saves(state.round) for run in self.together):
            self.write(state, self._history)
            self._tidy_together()

    def close(self, training: Training | None) -> None:
        """Write the state that the run ends with, unless it is there."""
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
        """Write one, and remove those that are too many."""
        self.write(state, history)
        self.tidy()

    def write(self, state: FederatedState, history: History) -> None:
        """Write one beside the others; the best goes first, as nothing after this one would lead to it again."""
        self.best.write(self.folder)
        self._named[state.round] = save_snapshot(self._path(state.round), state, history, self._parts)
        self._newest, self._ended = state.round, state.ended
        self._untidy = True
        self._written = time.monotonic()

    def tidy(self) -> None:
        """Remove what is older than the last few, newer than the last (it was of no use), or half written."""
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
        """The rounds after which there are checkpoints, the newest first."""
        try:
            found = [_NAME.fullmatch(path.name) for path in self.folder.iterdir()]
        except OSError:
            return []
        return sorted((int(name[1]) for name in found if name), reverse=True)

    def load(self, round_: int, device: torch.device) -> ResumePoint:
        """The checkpoint after a round; refused if it cannot be read."""
        return load_snapshot(self._path(round_), device)

    def go_on(self, state: FederatedState, device: torch.device) -> None:
        """Know that the run goes on from this checkpoint, and which model is the best so far."""
        self._newest, self._ended = state.round, state.ended
        self.best.read(self.folder, device)

    def _names(self, round_: int) -> set[str]:
        """The parts that a checkpoint is made of."""
        return self._named[round_] if round_ in self._named else parts_of(self._path(round_))

    def _path(self, round_: int) -> Path:
        return self.folder / f"round-{round_:08d}.safetensors"


def newest_common(runs: Sequence[Checkpoints], device: torch.device, say: Say) -> list[ResumePoint]:
    """A state and its history for each run, all after the newest round that all have and that can be read; else none.

    A run that had diverged, or was ended early, has stopped: its last state counts for every later round. Files that
    cannot be read are named, and the round before is tried.
    """
    read: dict[tuple[int, int], ResumePoint | None] = {}

    def load(run: int, round_: int) -> ResumePoint | None:
        if (run, round_) not in read:
            try:
                read[run, round_] = _before_the_next(runs[run].load(round_, device))
            except FedmmError as problem:
                say(f"{problem}; the checkpoint before it is tried")
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
    """Without what a guard did in the round after, which is run again unless the run has stopped there."""
    state, history = point
    if state.offender is None:
        history.events[:] = [event for event in history.events if event["round"] <= state.round]
    return state, history


def checkpoints_of(
    options: TrainOptions, folder: Path, best: BestModel | None = None, *, in_parts: bool = False
) -> Checkpoints:
    """The checkpoints of a run, as its options want them, with the best model beside them."""
    every, seconds, keep = options.checkpoint_every, options.checkpoint_seconds, options.keep_checkpoints
    return Checkpoints(folder, every=every, seconds=seconds, keep=keep, best=best, in_parts=in_parts)


def open_call_folder(
    folder: str | Path, adaptation: Adaptation, best: BestModel
) -> tuple[Checkpoints, ResumePoint | None, list[str]]:
    """The folder of a call of :func:`fedmm.adapt`; one of another call is refused.

    Returns where states are written, what to go on from, and what was wrong with what was there.
    """
    require(isinstance(folder, str | Path), f"resume must be a folder's name, not {folder!r}")
    folder = Path(folder)
    checkpoints = checkpoints_of(adaptation.options, folder, best)
    now = json.loads(json.dumps(fingerprint(adaptation)))
    if not (folder / ABOUT).exists():
        require(
            not (folder / FOLDER).exists(),
            f"{folder} holds checkpoints of something else than fedmm.adapt; name another folder with resume",
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
