"""The loop over rounds: run, evaluate, record. Whatever stops it, the last good round is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from fedmm.core.engine import Engine, FederatedState
from fedmm.core.errors import Diverged
from fedmm.experiment.history import History, Row, Value

Status = Literal["completed", "interrupted", "diverged"]
Evaluation = Mapping[str, Value]
Begun = tuple[FederatedState, History]
"""What a run goes on from: a state, and the rounds that led there."""


@dataclass(frozen=True)
class Training:
    """state: after the last good round; status: why it ended; error: what diverged."""

    state: FederatedState
    history: History
    status: Status
    error: Diverged | None = None


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
) -> Training:
    """Run ``rounds`` rounds; evaluate every so many, and always after the last.

    measures: the names of what ``evaluate`` measures; rounds without an evaluation have None for them.
    begun: a state and its history to go on from. keep: called after every round, to write checkpoints.

    Ctrl-C ends the loop after the last finished round, a non-finite client after the round before. A round is finished
    when it is evaluated; from then on Ctrl-C waits for ``on_round``, so that what is written agrees with what is kept.
    """
    state, history = begun or (engine.start(), History())
    try:
        while state.round < rounds:
            after, record = engine.run_round(state)
            due = after.round % evaluate_every == 0 or after.round == rounds
            measured: Evaluation = evaluate(after) if evaluate and due else dict.fromkeys(measures)
            with ctrl_c_waits():
                state, row = after, history.append(record, measured)
                if on_round:
                    on_round(row)
                if keep:
                    keep(state, history)
    except KeyboardInterrupt:
        return Training(state, history, "interrupted")
    except Diverged as error:
        return Training(state, history, "diverged", error)
    return Training(state, history, "completed")


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
