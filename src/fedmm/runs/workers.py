"""Run calls in worker processes, which report rounds as they finish; Ctrl-C stops them cleanly."""

from __future__ import annotations

import ast
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from fedmm.core.errors import Say
from fedmm.training.history import Row
from fedmm.training.loop import ctrl_c_waits

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class _Channels:
    """What connects the workers to the main process: finished rounds and messages, and the event to stop."""

    rows: Queue[tuple[int, Row] | str]
    stop: Event


_lines: _Channels  # in a worker


def report(number: int, row: Row) -> None:
    """Report a finished round of run ``number`` from a worker."""
    _lines.rows.put((number, row))


def tell(line: str) -> None:
    """Send a message from a worker to the user."""
    _lines.rows.put(line)


def told_to_stop() -> bool:
    """Return whether this worker is to stop."""
    return _lines.stop.is_set()


def can_start_workers() -> bool:
    """Return whether workers can import the main program: a script without a ``__name__`` guard would run again."""
    main = sys.modules["__main__"]
    path, module = getattr(main, "__file__", None), getattr(getattr(main, "__spec__", None), "name", "")
    if path is None or module.split(".")[-1] == "__main__":  # a notebook, or `python -m`: not imported
        return True
    try:
        script = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    guards = (statement.test for statement in script.body if isinstance(statement, ast.If))
    return any(isinstance(part, ast.Name) and part.id == "__name__" for test in guards for part in ast.walk(test))


def side_by_side(
    work: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    workers: int,
    on_row: Callable[[int, Row], None],
    say: Say = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[list[Future[Any]], bool]:
    """Run ``work(*call)`` for every call, ``workers`` at a time; return the futures, and whether they were stopped.

    After Ctrl-C, or once ``stop`` returns True, no further call starts, and :func:`told_to_stop` is true in the running
    ones; another Ctrl-C kills them.
    """
    context = multiprocessing.get_context("spawn")
    lines = _Channels(context.Queue(), context.Event())
    pool = ProcessPoolExecutor(min(workers, len(calls)), mp_context=context, initializer=_begin, initargs=(lines,))
    futures: list[Future[Any]] = []

    def end() -> None:
        lines.stop.set()
        for future in futures:
            future.cancel()

    def look() -> None:
        if not lines.stop.is_set() and stop():
            end()

    with _end_at_ctrl_c(), pool:
        try:
            with ctrl_c_waits(), _hide_ctrl_c_from_children():
                futures = [pool.submit(work, *call) for call in calls]
            _watch(futures, lines.rows, on_row, say, look)
        except KeyboardInterrupt:
            with _end_at_ctrl_c():
                end()
                _watch(futures, lines.rows, on_row, say)
    return futures, lines.stop.is_set()


@contextmanager
def _end_at_ctrl_c() -> Iterator[None]:
    """Kill the workers at a Ctrl-C inside: nobody would read what they still send, so they would wait forever."""
    try:
        yield
    except KeyboardInterrupt:
        for worker in multiprocessing.active_children():
            worker.kill()
        raise


def _begin(lines: _Channels) -> None:
    global _lines  # noqa: PLW0603 - queues and events can be passed to a worker only when it starts
    _lines = lines
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent ends: a run in its folder may be resumed by another process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _hide_ctrl_c_from_children() -> Iterator[None]:
    """Keep the Ctrl-C that a terminal sends to all from processes started inside: the parent decides when they stop."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(
    futures: Sequence[Future[Any]],
    lines: Queue[tuple[int, Row] | str],
    on_row: Callable[[int, Row], None],
    say: Say,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Pass on rounds and messages as they arrive until every call has ended; ``look`` is called in between."""
    while True:
        look()
        ended = all(future.done() for future in futures)
        try:
            with ctrl_c_waits():  # reading half a row would spoil the rest
                line = lines.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if ended:
                return
            continue
        if isinstance(line, str):
            say(line)
        else:
            on_row(*line)
