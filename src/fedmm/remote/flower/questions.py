"""A question to sites before there is anything to train: asked of each once, and again where it was not heard."""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from fedmm.remote.flower.envelope import read
from fedmm.remote.flower.roster import Roster
from fedmm.remote.kinds import MESSAGE_TYPES, PROBLEM
from fedmm.remote.packed import Malformed, Packed, one_line

_TRIES = 3


def ask_sites(
    grid: Grid,
    roster: Roster,
    kind: str,
    questions: Mapping[str, Packed],
    *,
    seconds: float,
    most_bytes: int,
    pause: float = 0.2,
) -> dict[str, Packed]:
    """The answers by site; in place of one that is not there or cannot be looked at, why, under ``PROBLEM``.

    seconds: for which answers are waited for. most_bytes: of an answer's arrays.
    """
    deadline = time.monotonic() + seconds
    answers = {name: _problem(f"it did not answer within {seconds:g} seconds") for name in questions}
    waiting, asked = dict.fromkeys(questions, _TRIES), dict[str, str]()
    while True:
        nodes = roster.online(grid)
        due = [name for name in waiting if name in nodes and name not in asked.values()]
        messages = [
            Message(
                roster.write(kind, nodes[name], questions[name]), nodes[name], MESSAGE_TYPES[kind], ttl=seconds + 1.0
            )
            for name in due
        ]
        for number, name in zip(grid.push_messages(messages) if messages else (), due, strict=False):
            if number:
                asked[number] = name
        for reply in grid.pull_messages(list(asked)) if asked else ():
            name = asked.pop(reply.metadata.reply_to_message_id)
            waiting[name] -= 1
            answers[name] = _read(reply, most_bytes)
            if not reply.has_error() or not waiting[name]:
                del waiting[name]
        if not waiting or time.monotonic() >= deadline:
            return answers
        time.sleep(pause)


def _read(reply: Message, most_bytes: int) -> Packed:
    if reply.has_error():
        return _problem(f"it did not answer: {one_line(reply.error.reason)}")
    try:
        packed = read(reply.content, most_bytes)
    except Malformed as problem:
        return _problem(one_line(problem))
    return _problem(one_line(packed.about[PROBLEM])) if PROBLEM in packed.about else packed


def _problem(reason: str) -> Packed:
    return Packed({}, {PROBLEM: reason}, {})
