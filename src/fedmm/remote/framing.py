"""Packed messages over a connection between two processes of one machine. Needs no torch.

A message is a line of JSON and the arrays' bytes one after the other: nothing in it is executed when it is read.
"""

from __future__ import annotations

import json
from multiprocessing.connection import Connection

import numpy as np

from fedmm.remote.packed import Packed

Pipe = Connection  # of bytes both ways


def send(pipe: Pipe[bytes, bytes], kind: str, packed: Packed) -> None:
    """Send a message of a kind."""
    described = [[name, array.dtype.str, list(array.shape)] for name, array in packed.arrays.items()]
    head = {"kind": kind, "about": packed.about, "metrics": packed.metrics, "arrays": described}
    pipe.send_bytes(json.dumps(head).encode())
    pipe.send_bytes(b"".join(np.ascontiguousarray(array).tobytes() for array in packed.arrays.values()))


def receive(pipe: Pipe[bytes, bytes]) -> tuple[str, Packed]:
    """The next message and its kind; its arrays cannot be written to."""
    head = json.loads(pipe.recv_bytes())
    content, place, arrays = pipe.recv_bytes(), 0, {}
    for name, kind, shape in head["arrays"]:
        dtype = np.dtype(kind)
        size = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(content, dtype, size, place).reshape(shape)
        place += size * dtype.itemsize
    return head["kind"], Packed(arrays, head["about"], head["metrics"])
