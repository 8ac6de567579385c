"""The loop over rounds: run, evaluate, record. Whatever stops it, the last good round is kept."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import Engine, FederatedState, RoundRecord
from fedmm.core.errors import Diverged
from fedmm.core.problem import Statistics
from fedmm.training.guard import Guard, Watch, watched
from fedmm.training.history import Event, History, Row, Value
from fedmm.training.privacy import PrivacyAccount
from fedmm.training.selection import Best, Chooser, Patience, Stopped, Stopping

Status = Literal["completed", "interrupted", "diverged"]
Evaluation = Mapping[str, Value]
Begun = tuple[FederatedState, History]
"""What a run goes on from: a state, and the rounds that led there."""


@dataclass(frozen=True)
class Guarded:
    """A guard with what it needs to go on with calmer steps: the algorithm, and how an engine is made for another."""

    guard: Guard
    algorithm: Algorithm
    engine: Callable[[Algorithm], Engine]


@dataclass(frozen=True)
class Choosing:
    """What is chosen on the way.

    stopping: when the run ends early. best: what keeps the best model; statistics: those that its predictions use.
    """

    stopping: Stopping
    best: Chooser
    statistics: Callable[[FederatedState], Statistics]


@dataclass(frozen=True)
class Training:
    """state: after the last good round; status: why it ended; error: what diverged.

    stopped: where a validator ended it early. best: the model of its best round by a validator, where one was named.
    """

    state: FederatedState
    history: History
    status: Status
    error: Diverged | None = None
    stopped: Stopped | None = None
    best: Best | None = None


def train(
    engine: Engine,
    rounds: int,
    *,
    evaluate: Callable[[FederatedState], Evaluation] | None = None,
    measures: Sequence[str] = (),
    evaluate_every: int = 1,
    on_round: Callable[[Row], None] | None = None,
    begun: Begun | None = None,
    keep: Callable[[FederatedState, History], None] | None = None,
    guarded: Guarded | None = None,
    account: PrivacyAccount | None = None,
    choosing: Choosing | None = None,
) -> Training:
    """Run ``rounds`` rounds; evaluate every so many, and always after the last.

    measures: the names of what ``evaluate`` measures; rounds without an evaluation have None for them.
    begun: a state and its history to go on from. keep: called after every round, to write checkpoints.
    guarded: what is done about rounds that are not finite, or explode; without it the former end the run.
    account: of what the noise in the updates is worth; every row then has ``epsilon``.
    choosing: by which validators the run is stopped early, and its best model kept.

    Ctrl-C ends the loop after the last finished round, a non-finite client after the round before. A round is finished
    when it is evaluated; from then on Ctrl-C waits for ``on_round``, so that what is written agrees with what is kept.
    """
    state, history = begun or (engine.start(), History())
    safe = _GuardedEngine(engine, guarded, state, history) if guarded else None
    patience = Patience(choosing.stopping if choosing else Stopping(), history)
    status: Status = "completed"
    error: Diverged | None = None
    try:
        while state.round < rounds and not patience.stopped:
            after, record = (safe or engine).run_round(state)
            due = after.round % evaluate_every == 0 or after.round == rounds
            measured: Evaluation = evaluate(after) if evaluate and due else dict.fromkeys(measures)
            if account:
                measured = {**measured, **account.after(history["clients"], record.clients)}
            with ctrl_c_waits():
                event, looked = safe.event if safe else None, evaluate is not None and due
                state, row = after, history.append(record, measured, event, by_client=looked)
                patience.look(row)
                if choosing and choosing.best.wants(row):
                    choosing.best.take(row, state.z, choosing.statistics(state))
                if on_round:
                    on_round(row)
                if keep:
                    keep(state, history)
    except KeyboardInterrupt:
        status = "completed" if patience.stopped else "interrupted"
    except Diverged as problem:
        status, error = "diverged", problem
    return Training(state, history, status, error, patience.stopped, choosing.best.best if choosing else None)


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
