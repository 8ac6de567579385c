"""The training loop: run, evaluate and record rounds. Whatever stops it, the last good round is kept."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import Engine, FederatedState, RoundRecord
from fedmm.core.errors import Diverged
from fedmm.training.callbacks import Callback, RunLog, Status, Training, best_model_in
from fedmm.training.guard import Guard, Watch, watched
from fedmm.training.history import Event, History, Value
from fedmm.training.snapshots import ResumePoint


@dataclass(frozen=True)
class RoundEvaluation:
    """Evaluation of the server's model every ``every`` rounds, and always after the last.

    measures: the names of the metrics of ``evaluate``; they are None in rounds without an evaluation.
    """

    evaluate: Callable[[FederatedState], Mapping[str, Value]]
    measures: Sequence[str] = ()
    every: int = 1

    def is_due(self, round_: int, rounds: int) -> bool:
        return round_ % self.every == 0 or round_ == rounds


@dataclass(frozen=True)
class Guarded:
    """A guard with what it needs to continue with smaller steps: the algorithm, and a function to make engines."""

    guard: Guard
    algorithm: Algorithm
    engine: Callable[[Algorithm], Engine]


class Rounds(Protocol):
    """One run, or several as one program, to be driven by :func:`run_rounds`.

    round: how many rounds are finished. ended: whether to stop although rounds are left. halfway: whether a round was
    interrupted midway, so that there is no state to continue from.
    """

    @property
    def round(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    @property
    def halfway(self) -> bool: ...

    def begin(self) -> None:
        """Open the callbacks before the first round, also after a resume."""

    def advance(self, rounds: int) -> bool:
        """Run, evaluate and record one of ``rounds`` rounds; return whether callbacks have seen all rounds so far."""

    def close(self, status: Status | None, error: Diverged | None) -> None:
        """Close the callbacks. status: why the rounds ended; None if an unexpected error ended them."""


def run_rounds(run: Rounds, rounds: int, stop: Callable[[], bool] = lambda: False) -> Status:
    """Run rounds up to number ``rounds``: the one loop for all engines, for single runs and stacks.

    stop: called between rounds; if it returns True, the rest is left for later.
    """
    status: Status = "completed"
    error: Diverged | None = None
    try:
        run.begin()
        while run.round < rounds and not run.ended:
            if run.advance(rounds) and run.round < rounds and stop():
                status = "interrupted"
                break
    except KeyboardInterrupt:
        if run.halfway:
            run.close(None, None)
            raise
        status = "completed" if run.ended else "interrupted"
    except Diverged as problem:
        status, error = "diverged", problem
    except BaseException:
        run.close(None, None)
        raise
    run.close(status, error)
    return status


def train(
    engine: Engine,
    rounds: int,
    callbacks: Sequence[Callback] = (),
    resume_from: ResumePoint | None = None,
    *,
    evaluation: RoundEvaluation | None = None,
    guarded: Guarded | None = None,
) -> Training:
    """Run rounds up to number ``rounds``, evaluate and record them, and call the callbacks after each.

    resume_from: a state and its history to continue from.
    guarded: what to do about rounds that are not finite or explode; without it, a non-finite round ends the run.

    Ctrl-C ends the loop after the last finished round, a non-finite client after the round before. A round is finished
    once it is evaluated; from then on Ctrl-C waits for the callbacks, so that what they write agrees with the result.
    """
    run = _SingleRun(engine, callbacks, resume_from or (engine.start(), History()), evaluation, guarded)
    run_rounds(run, rounds)
    return run.training


class _SingleRun:
    """One run on any engine."""

    training: Training
    halfway = False

    def __init__(
        self,
        engine: Engine,
        callbacks: Sequence[Callback],
        begun: ResumePoint,
        evaluation: RoundEvaluation | None,
        guarded: Guarded | None,
    ) -> None:
        self._state, self._history = begun
        self._guarded = _GuardedEngine(engine, guarded, *begun) if guarded else None
        self._engine = self._guarded or engine
        self._evaluation = evaluation
        self._best = best_model_in(callbacks)
        self._log = RunLog(callbacks, self._history)

    @property
    def round(self) -> int:
        return self._state.round

    @property
    def ended(self) -> bool:
        return self._log.stopped is not None

    def begin(self) -> None:
        self._log.begin(self._state)

    def advance(self, rounds: int) -> bool:
        after, record = self._engine.run_round(self._state)
        evaluation = self._evaluation
        due = evaluation is not None and evaluation.is_due(after.round, rounds)
        measured: Mapping[str, Value] = dict.fromkeys(evaluation.measures) if evaluation else {}
        if evaluation and due:
            measured = evaluation.evaluate(after)
        event = self._guarded.event if self._guarded else None
        with ctrl_c_waits():
            self._state, row = after, self._log.add(record, measured, event=event, by_client=due)
            self._log.tell(self._state, row)
        return True

    def close(self, status: Status | None, error: Diverged | None) -> None:
        if status is None:
            self._log.close(None)
            return
        best = self._best.best if self._best else None
        self.training = Training(self._state, self._history, status, error, self._log.stopped, best)
        self._log.close(self.training)


class _GuardedEngine:
    """An engine whose rounds are checked; after a bad round it may return an earlier good state.

    event: what the guard did about the last round.
    """

    def __init__(self, engine: Engine, guarded: Guarded, state: FederatedState, history: History) -> None:
        self._watch = Watch(guarded.guard, guarded.algorithm, state, history)
        self._engine = guarded.engine(self._watch.algorithm) if history.events else engine
        self._anew = guarded.engine
        self._history = history
        self.event: Event | None = None

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        """Run one round; raise ``Diverged`` if it is bad and the guard stops the run."""
        self.event = None
        limits = self._watch.limits()
        try:
            after, record = self._engine.run_round(state)
            trouble = self._watch.trouble(watched(record), limits)
            if not trouble:
                return self._watch.passed(after), record
            bad = Diverged("", after.round, trouble)
        except Diverged as error:
            bad, record = error, self._unmeasured(state.round + 1)
        back = self._watch.back(record.round, bad)
        self.event = self._history.events[-1]
        self._engine = self._anew(self._watch.algorithm)
        return back, record

    def _unmeasured(self, round_: int) -> RoundRecord:
        """Return the record of a round that was not finite; its bytes are taken from the round before."""
        sent = self._history[-1] if len(self._history) else {}
        up, down = (int(sent.get(name) or 0) for name in ("bytes_up", "bytes_down"))
        return RoundRecord(round_, math.nan, math.nan, math.nan, up, down, 0.0)


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, so that the block runs as a whole; a second one takes effect at once."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # handlers run only in the main thread, and one not installed from Python cannot be restored
        return
    pressed = False

    def wait(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)
