"""Messages between processes of one machine, in memory that they share: Ray's store is several processes away."""

from __future__ import annotations

import os
import pickle
from importlib import import_module
from typing import Any, NamedTuple

import torch

_TOKEN = 16
_ALIGNED = 64


class Posted(NamedTuple):
    """A message without its arrays, and where in memory these begin and end; token: what lies there first."""

    text: bytes
    place: str
    token: bytes
    spans: tuple[tuple[int, int], ...]


class BoardGone(Exception):  # noqa: N818 - reads as what happened
    """The process that posted a message has ended, or has posted others since."""


class Board:
    """Where a process posts messages for others of the same user.

    They can be read until it posts again; who has read one keeps it, whatever becomes of this process.
    """

    def __init__(self) -> None:
        self._files: list[int] = []

    def post(self, *messages: Any) -> tuple[Posted, ...]:
        """Post messages, each in memory of its own, in place of those of the last time."""
        self.close()
        return tuple(self._posted(message) for message in messages)

    def close(self) -> None:
        """Post nothing."""
        while self._files:
            os.close(self._files.pop())

    def _posted(self, message: Any) -> Posted:
        buffers: list[pickle.PickleBuffer] = []
        as_ray_does = import_module("ray.cloudpickle")  # an optional dependency
        text = as_ray_does.dumps(message, protocol=5, buffer_callback=buffers.append)
        token, spans, end = os.urandom(_TOKEN), [], _TOKEN
        number = os.memfd_create("fedmm")
        self._files.append(number)
        with open(number, "wb", closefd=False) as file:
            file.write(token)
            for buffer in buffers:
                start = -(-end // _ALIGNED) * _ALIGNED
                file.seek(start)
                end = start + file.write(buffer.raw())
                spans.append((start, end))
            file.truncate(end)  # also where an empty array comes last
        return Posted(text, f"/proc/{os.getpid()}/fd/{number}", token, tuple(spans))


def read(posted: Posted) -> Any:
    """The message; its arrays are views of memory that is copied where it is written to, and freed with the last."""
    size = max((end for _, end in posted.spans), default=_TOKEN)
    try:
        # Python's own mmap keeps a file open for as long as there are views: with all states of a long run, too many
        memory = torch.from_file(posted.place, shared=False, size=size, dtype=torch.uint8)
    except RuntimeError as problem:
        raise BoardGone(posted.place) from problem
    view = memory.numpy().data
    if view[:_TOKEN] != posted.token:
        raise BoardGone(posted.place)
    return pickle.loads(posted.text, buffers=[view[start:end] for start, end in posted.spans])
