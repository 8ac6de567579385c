"""Messages between Ray's processes: arrays in place of tensors, in shared memory if all run on one machine.

Ray's own object store takes several processes' help; it carries messages if the actors run on several machines.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_TOKEN = 16
_ALIGNED = 64


class Posted(NamedTuple):
    """A message without its arrays, and where these begin and end in memory; token: the bytes at its start."""

    text: bytes
    place: str
    token: bytes
    spans: tuple[tuple[int, int], ...]


class MemoryGone(Exception):  # noqa: N818 - reads as what happened
    """The process that posted a message has ended, or has posted others since."""


class SharedMemory:
    """Where a process posts messages for others of the same user.

    They can be read until it posts again; a message that was read stays valid whatever becomes of this process.
    """

    def __init__(self) -> None:
        self._files: list[int] = []

    def post(self, *messages: Any) -> tuple[Posted, ...]:
        """Post messages, each in separate memory, in place of the last ones."""
        self.close()
        return tuple(self._post(message) for message in messages)

    def close(self) -> None:
        """Withdraw all messages."""
        while self._files:
            os.close(self._files.pop())

    def _post(self, message: Any) -> Posted:
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
            file.truncate(end)  # needed if an empty array comes last
        return Posted(text, f"/proc/{os.getpid()}/fd/{number}", token, tuple(spans))


def read(posted: Posted) -> Any:
    """Return the message; its arrays are copy-on-write views of memory that is freed with the last of them."""
    size = max((end for _, end in posted.spans), default=_TOKEN)
    try:
        # Python's mmap would keep a file open for as long as there are views: too many for a long run's states
        memory = torch.from_file(posted.place, shared=False, size=size, dtype=torch.uint8)
    except RuntimeError as problem:
        raise MemoryGone(posted.place) from problem
    view = memory.numpy().data
    if view[:_TOKEN] != posted.token:
        raise MemoryGone(posted.place)
    return pickle.loads(posted.text, buffers=[view[start:end] for start, end in posted.spans])


# Tensors as arrays, which Ray passes between processes without copying them -------------------------------------------

Packed = Any
"""A message in which every tensor is an array."""


def to_arrays(message: Any) -> Packed:
    """Replace the tensors in dicts, tuples and dataclasses by arrays; a tensor that occurs twice travels once."""
    known: dict[int, np.ndarray[Any, Any]] = {}

    def to_array(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = leaf.detach().cpu().contiguous().numpy()
        return known[id(leaf)]

    return _map_leaves(message, to_array)


def to_tensors(message: Packed, device: torch.device, *, own: bool = False) -> Any:
    """Replace the arrays in a message by tensors on a device.

    On a CPU they are read-only views, of Ray's store only valid while it is connected; own: make copies instead.
    """

    def to_tensor(leaf: Any) -> Any:
        return torch.from_numpy(leaf).to(device, copy=own) if isinstance(leaf, np.ndarray) else leaf

    return _map_leaves(message, to_tensor)


def copy_arrays(message: Packed) -> Packed:
    """Return the message with copies of its arrays."""
    return _map_leaves(message, lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf)


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _map_leaves(each, change) for key, each in value.items()}
    if isinstance(value, tuple):
        each_changed = [_map_leaves(item, change) for item in value]
        return type(value)(*each_changed) if hasattr(value, "_fields") else tuple(each_changed)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: _map_leaves(getattr(value, field.name), change) for field in fields(value)}
        )
    return change(value)


def _be_warned_once() -> None:
    """Consume torch's warning about read-only arrays, which it gives once: views of Ray's memory are read-only."""
    array = np.zeros(1)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.from_numpy(array)


_be_warned_once()
