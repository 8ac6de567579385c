"""Runs in processes of their own: their rounds come back as they are done, and Ctrl-C stops them in good order."""

from __future__ import annotations

import multiprocessing
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

from fedmm.experiment.history import Row
from fedmm.experiment.training import ctrl_c_waits

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class _Lines:
    """Between us and the workers: the rounds as they are done, and the word to stop."""

    rows: Queue[tuple[int, Row]]
    stop: Event


_lines: _Lines  # in a worker


def report(number: int, row: Row) -> None:
    """In a worker: one more finished round of run ``number``."""
    _lines.rows.put((number, row))


def told_to_stop() -> bool:
    """In a worker: whether to stop."""
    return _lines.stop.is_set()


def side_by_side(
    work: Callable[..., Any], calls: Sequence[tuple[Any, ...]], workers: int, on_row: Callable[[int, Row], None]
) -> tuple[list[Future[Any]], bool]:
    """``work(*call)`` for every call, so many at a time; the ended futures, and whether Ctrl-C stopped them.

    After Ctrl-C no call begins, and :func:`told_to_stop` is true in those under way.
    """
    context = multiprocessing.get_context("spawn")
    lines = _Lines(context.Queue(), context.Event())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(lines,))
    futures: list[Future[Any]] = []
    with pool:
        try:
            with ctrl_c_waits(), _children_deaf_to_ctrl_c():
                futures = [pool.submit(work, *call) for call in calls]
            _watch(futures, lines.rows, on_row)
        except KeyboardInterrupt:
            lines.stop.set()
            for future in futures:
                future.cancel()
            _watch(futures, lines.rows, on_row)
    return futures, lines.stop.is_set()


def _begin(lines: _Lines) -> None:
    global _lines  # noqa: PLW0603 - queues and events reach a worker when it begins, and only then
    _lines = lines


@contextmanager
def _children_deaf_to_ctrl_c() -> Iterator[None]:
    """Processes begun inside never feel the Ctrl-C that a terminal sends to all: when they stop is for us to say."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(futures: Sequence[Future[Any]], rows: Queue[tuple[int, Row]], on_row: Callable[[int, Row], None]) -> None:
    """Hand on the rounds as they come in until every call has ended."""
    while True:
        ended = all(future.done() for future in futures)
        try:
            with ctrl_c_waits():  # half a row read would spoil the rest
                number, row = rows.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if ended:
                return
            continue
        on_row(number, row)
