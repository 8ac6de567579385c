"""Messages between processes: named arrays, plain values, and numbers that were measured. Needs no torch.

Between two processes of one machine a message is a line of JSON and the arrays' bytes one after the other: nothing in
it is executed when it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

INTRODUCE, DESCRIBE, TRAIN, MEASURE = "introduce", "describe", "train", "measure"
"""What a site can be asked: who it is and what it holds, to describe the columns of its table by sums, to work in a
round, and to measure a model on its own rows."""

CONFIRM, OPEN = "confirm", "open"
"""Where updates are masked: whose their sum is of, and to open it."""

MESSAGE_TYPES = {
    INTRODUCE: "query",
    DESCRIBE: "query.describe",
    TRAIN: "train",
    MEASURE: "evaluate",
    CONFIRM: "query.confirm",
    OPEN: "query.open",
}
"""Flower's type of the message that asks it."""

PROBLEM = "problem"
"""Where a site says in words why it cannot answer."""

FINAL = "final"
"""Where a site says that the same question would be refused again."""

TUNING_ROUNDS, TUNING_QUESTIONS = "tuning_rounds", "tuning_questions"
"""Where a server says, before a tuning, how many rounds and questions it will take of a site at most."""

NAME = "site"
"""Where a site says its name when it introduces itself."""

_MOST_ARRAYS, _MOST_AXES = 10_000, 16
_NUMBERS = "fiub"

Arrays = dict[str, NDArray[Any]]
About = dict[str, int | float | str | bool]


class Malformed(Exception):  # noqa: N818 - reads as what is wrong
    """A message that cannot be read, and why, in words that follow its sender's name."""


class Packed(NamedTuple):
    """What travels."""

    arrays: Arrays
    about: About
    metrics: dict[str, float]


Ask = Callable[[str, Mapping[str, Packed]], Mapping[str, Packed]]
"""Puts a question of a kind to each of these sites, and gives the answers of those that answered in time."""


def array_bytes(arrays: Mapping[str, NDArray[Any]]) -> tuple[list[Any], bytes]:
    """Name, dtype and shape of each array, as JSON can have them, and their bytes one after the other."""
    described = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    return described, b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


def read_arrays(described: list[Any], content: bytes) -> Arrays:
    """The arrays that travelled so, which cannot be written to; what cannot be read is ``Malformed``."""
    if len(described) > _MOST_ARRAYS:
        raise Malformed(f"it sent {len(described)} arrays")
    arrays, place = Arrays(), 0
    for name, kind, shape in described:
        dtype = np.dtype(str(kind))
        sides = [int(side) for side in shape]
        if dtype.kind not in _NUMBERS or len(sides) > _MOST_AXES or min(sides, default=0) < 0:
            raise Malformed(f"it sent an array of {str(kind)[:20]} that cannot be read")
        count = math.prod(sides)
        if count * dtype.itemsize > len(content) - place:
            raise Malformed("it sent fewer bytes than its arrays have")
        arrays[str(name)] = np.frombuffer(content, dtype, count, place).reshape(sides)
        place += count * dtype.itemsize
    if place != len(content):
        raise Malformed("it sent more bytes than its arrays have")
    return arrays


def one_line(text: object, most: int = 300) -> str:
    """What another machine says, fit for a line of a log."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:most])


def contents(arrays: Mapping[str, NDArray[Any]]) -> str:
    """What arrays are, in words: name, shape, dtype and bytes of each."""
    named = [f"{name} {list(array.shape)} {array.dtype} {array.nbytes} bytes" for name, array in arrays.items()]
    return "; ".join(named) or "no arrays"


# Over a pipe ----------------------------------------------------------------------------------------------------------

Pipe = Connection  # of bytes both ways


def send(pipe: Pipe[bytes, bytes], kind: str, packed: Packed) -> None:
    """Send a message of a kind."""
    arrays, content = array_bytes(packed.arrays)
    head = {"kind": kind, "about": packed.about, "metrics": packed.metrics, "arrays": arrays}
    pipe.send_bytes(json.dumps(head).encode())
    pipe.send_bytes(content)


def receive(pipe: Pipe[bytes, bytes]) -> tuple[str, Packed]:
    """The next message and its kind; its arrays cannot be written to."""
    head = json.loads(pipe.recv_bytes())
    return head["kind"], Packed(read_arrays(head["arrays"], pipe.recv_bytes()), head["about"], head["metrics"])


ANSWERS = "answers"


def send_each(pipe: Pipe[bytes, bytes], kind: str, messages: Mapping[str, Packed], seconds: float = 0.0) -> None:
    """Send a message of a kind for, or from, each of these clients. seconds: that answers are waited for."""
    send(pipe, kind, Packed({}, {"messages": len(messages), "seconds": seconds}, {}))
    for name, packed in messages.items():
        send(pipe, name, packed)


def receive_each(pipe: Pipe[bytes, bytes]) -> tuple[str, dict[str, Packed], float]:
    """The next messages: their kind, each by its client, and the seconds."""
    kind, head = receive(pipe)
    messages = dict(receive(pipe) for _ in range(int(head.about["messages"])))
    return kind, messages, float(head.about["seconds"])


# JSON, bounded in size and depth before it is parsed ------------------------------------------------------------------

MOST_BYTES = 1 << 16
MOST_DEPTH = 8


def read_json(text: object, what: str, *, most_bytes: int = MOST_BYTES, most_depth: int = MOST_DEPTH) -> Any:
    """The value of a JSON text that a site sent; ``Malformed`` if it is none, too large, too deep or not finite.

    what: as the reason calls it, such as "what it holds". most_bytes: in UTF-8. most_depth: of lists and tables.
    """
    if not isinstance(text, str):
        raise Malformed(f"{what} is no text")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most_bytes:
        raise Malformed(f"{what} takes {size} bytes of JSON, where at most {most_bytes} are read")
    if _is_deeper(text, most_depth):
        raise Malformed(f"{what} is nested more than {most_depth} deep")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise Malformed(f"{what} is no JSON: {problem}") from problem


def _is_deeper(text: str, most: int) -> bool:
    """Whether lists and tables are open more than ``most`` deep somewhere, without parsing."""
    depth, quoted, escaped = 0, False, False
    for letter in text:
        if quoted:
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            quoted = True
        elif letter in "[{":
            depth += 1
            if depth > most:
                return True
        elif letter in "]}":
            depth -= 1
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
