"""The loop over rounds: run, evaluate, record. Whatever stops it, the last good round is kept."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import Engine, FederatedState, RoundRecord
from fedmm.core.errors import Diverged
from fedmm.training.callbacks import Callback, RunLog, Status, Training, best_model_in
from fedmm.training.guard import Guard, Watch, watched
from fedmm.training.history import Event, History, Value
from fedmm.training.snapshots import ResumePoint


@dataclass(frozen=True)
class Evaluation:
    """What is measured of the server's model, every so many rounds and always after the last.

    measures: the names of what ``evaluate`` measures; rounds without an evaluation have None for them.
    """

    evaluate: Callable[[FederatedState], Mapping[str, Value]]
    measures: Sequence[str] = ()
    every: int = 1

    def is_due(self, round_: int, rounds: int) -> bool:
        return round_ % self.every == 0 or round_ == rounds


@dataclass(frozen=True)
class Guarded:
    """A guard with what it needs to go on with calmer steps: the algorithm, and how an engine is made for another."""

    guard: Guard
    algorithm: Algorithm
    engine: Callable[[Algorithm], Engine]


def train(
    engine: Engine,
    rounds: int,
    callbacks: Sequence[Callback] = (),
    resume_from: ResumePoint | None = None,
    *,
    evaluation: Evaluation | None = None,
    guarded: Guarded | None = None,
) -> Training:
    """Run rounds up to number ``rounds``, evaluate and record them, and call the callbacks after each.

    resume_from: a state and its history to go on from.
    guarded: what is done about rounds that are not finite, or explode; without it the former end the run.

    Ctrl-C ends the loop after the last finished round, a non-finite client after the round before. A round is finished
    when it is evaluated; from then on Ctrl-C waits for the callbacks, so that what is written agrees with what is kept.
    """
    state, history = resume_from or (engine.start(), History())
    safe = _GuardedEngine(engine, guarded, state, history) if guarded else None
    log = RunLog(callbacks, history)
    status: Status = "completed"
    error: Diverged | None = None
    try:
        log.begin(state)
        while state.round < rounds and not log.stopped:
            after, record = (safe or engine).run_round(state)
            due = evaluation is not None and evaluation.is_due(after.round, rounds)
            measured: Mapping[str, Value] = dict.fromkeys(evaluation.measures) if evaluation else {}
            if evaluation and due:
                measured = evaluation.evaluate(after)
            with ctrl_c_waits():
                state, row = after, log.add(record, measured, event=safe.event if safe else None, by_client=due)
                log.tell(state, row)
    except KeyboardInterrupt:
        status = "completed" if log.stopped else "interrupted"
    except Diverged as problem:
        status, error = "diverged", problem
    except BaseException:
        log.close(None)
        raise
    best = best_model_in(callbacks)
    training = Training(state, history, status, error, log.stopped, best.best if best else None)
    log.close(training)
    return training


class _GuardedEngine:
    """Rounds that are looked at: where one is bad, the state after it is an earlier good one.

    event: what was done about the last round.
    """

    def __init__(self, engine: Engine, guarded: Guarded, state: FederatedState, history: History) -> None:
        self._watch = Watch(guarded.guard, guarded.algorithm, state, history)
        self._engine = guarded.engine(self._watch.algorithm) if history.events else engine
        self._anew = guarded.engine
        self._history = history
        self.event: Event | None = None

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        """One round; raises ``Diverged`` where the guard's policy is to stop."""
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
        """The record of a round that was not finite; as much was sent in it as in the one before."""
        sent = self._history[-1] if len(self._history) else {}
        up, down = (int(sent.get(name) or 0) for name in ("bytes_up", "bytes_down"))
        return RoundRecord(round_, math.nan, math.nan, math.nan, up, down, 0.0)


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Ctrl-C inside is felt at the end, so that what belongs together is done whole; a second one is felt at once."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # Python's handlers run in the main thread alone, and one that is not Python's cannot be put back
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
