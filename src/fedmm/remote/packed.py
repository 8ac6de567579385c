"""Messages between processes: named arrays, plain values and metrics; needs no torch.

Between processes of one machine a message is a line of JSON followed by the arrays' bytes; reading it executes nothing.
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
"""Questions to a site: introduce itself, describe its table by sums, train in a round, evaluate a model on its rows."""

CONFIRM, OPEN = "confirm", "open"
"""Questions about masked updates: confirm whose sum it is, and open it."""

MESSAGE_TYPES = {
    INTRODUCE: "query",
    DESCRIBE: "query.describe",
    TRAIN: "train",
    MEASURE: "evaluate",
    CONFIRM: "query.confirm",
    OPEN: "query.open",
}
"""Flower's message type for each kind of question."""

PROBLEM = "problem"
"""The key under which a site says why it cannot answer."""

FINAL = "final"
"""The key under which a site says that it would refuse the same question again."""

TUNING_ROUNDS, TUNING_QUESTIONS = "tuning_rounds", "tuning_questions"
"""The keys under which a server announces, before tuning, the most rounds and questions it will ask of a site."""

NAME = "site"
"""The key under which a site gives its name when it introduces itself."""

_MOST_ARRAYS, _MOST_AXES = 10_000, 16
_NUMBERS = "fiub"

Arrays = dict[str, NDArray[Any]]
About = dict[str, int | float | str | bool]


class Malformed(Exception):  # noqa: N818 - reads as what is wrong
    """A message that cannot be read; the reason is worded to follow the sender's name."""


class Packed(NamedTuple):
    """The content of a message."""

    arrays: Arrays
    about: About
    metrics: dict[str, float]


Ask = Callable[[str, Mapping[str, Packed]], Mapping[str, Packed]]
"""Puts a question of a given kind to each of these sites, and returns the answers that arrive in time."""


def array_bytes(arrays: Mapping[str, NDArray[Any]]) -> tuple[list[Any], bytes]:
    """Return each array's name, dtype and shape, for JSON, and the arrays' bytes in sequence."""
    described = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    return described, b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


def read_arrays(described: list[Any], content: bytes) -> Arrays:
    """Rebuild arrays, read-only, from :func:`array_bytes`; raise Malformed if that fails."""
    if len(described) > _MOST_ARRAYS:
        raise Malformed(f"it sent {len(described)} arrays, but at most {_MOST_ARRAYS} are accepted")
    arrays, place = Arrays(), 0
    for name, kind, shape in described:
        dtype = np.dtype(str(kind))
        sides = [int(side) for side in shape]
        if dtype.kind not in _NUMBERS or len(sides) > _MOST_AXES or min(sides, default=0) < 0:
            raise Malformed(f"it sent an array of dtype {str(kind)[:20]} that cannot be read")
        count = math.prod(sides)
        if count * dtype.itemsize > len(content) - place:
            raise Malformed("it sent fewer bytes than its arrays have")
        arrays[str(name)] = np.frombuffer(content, dtype, count, place).reshape(sides)
        place += count * dtype.itemsize
    if place != len(content):
        raise Malformed("it sent more bytes than its arrays have")
    return arrays


def one_line(text: object, most: int = 300) -> str:
    """Make text from another machine safe for one line of a log."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:most])


def contents(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Describe arrays in words: the name, shape, dtype and bytes of each."""
    named = [f"{name} {list(array.shape)} {array.dtype} {array.nbytes} bytes" for name, array in arrays.items()]
    return "; ".join(named) or "no arrays"


# Over a pipe ----------------------------------------------------------------------------------------------------------

Pipe = Connection  # carries bytes both ways


def send(pipe: Pipe[bytes, bytes], kind: str, packed: Packed) -> None:
    """Send a message of a given kind."""
    arrays, content = array_bytes(packed.arrays)
    head = {"kind": kind, "about": packed.about, "metrics": packed.metrics, "arrays": arrays}
    pipe.send_bytes(json.dumps(head).encode())
    pipe.send_bytes(content)


def receive(pipe: Pipe[bytes, bytes]) -> tuple[str, Packed]:
    """Return the kind of the next message and the message; its arrays are read-only."""
    head = json.loads(pipe.recv_bytes())
    return head["kind"], Packed(read_arrays(head["arrays"], pipe.recv_bytes()), head["about"], head["metrics"])


ANSWERS = "answers"


def send_each(pipe: Pipe[bytes, bytes], kind: str, messages: Mapping[str, Packed], seconds: float = 0.0) -> None:
    """Send a message of a given kind to or from each of these clients. seconds: how long to wait for answers."""
    send(pipe, kind, Packed({}, {"messages": len(messages), "seconds": seconds}, {}))
    for name, packed in messages.items():
        send(pipe, name, packed)


def receive_each(pipe: Pipe[bytes, bytes]) -> tuple[str, dict[str, Packed], float]:
    """Return the next messages as :func:`send_each` sent them: their kind, each by client, and the seconds."""
    kind, head = receive(pipe)
    messages = dict(receive(pipe) for _ in range(int(head.about["messages"])))
    return kind, messages, float(head.about["seconds"])


# JSON, bounded in size and depth before it is parsed ------------------------------------------------------------------

MOST_BYTES = 1 << 16
MOST_DEPTH = 8


def read_json(text: object, what: str, *, most_bytes: int = MOST_BYTES, most_depth: int = MOST_DEPTH) -> Any:
    """Parse JSON text from a site; raise Malformed if it is invalid, too large, too deep or not finite.

    what: its name in the reason, such as "what it holds". most_bytes: in UTF-8. most_depth: of lists and tables.
    """
    if not isinstance(text, str):
        raise Malformed(f"{what} is not text")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most_bytes:
        raise Malformed(f"{what} has {size} bytes of JSON, but at most {most_bytes} are accepted")
    if _is_deeper(text, most_depth):
        raise Malformed(f"{what} is nested more than {most_depth} levels deep")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise Malformed(f"{what} is not valid JSON: {problem}") from problem


def _is_deeper(text: str, most: int) -> bool:
    """Return whether lists and tables nest more than ``most`` deep, without parsing."""
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
    raise ValueError(f"{name} is not a number")
