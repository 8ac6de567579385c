"""JSON from another machine: bounded in size and depth before it is parsed. Needs no torch."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from fedmm.remote.packed import Malformed

MOST_BYTES = 1 << 16
MOST_DEPTH = 8


def read_json(text: object, what: str, *, most_bytes: int = MOST_BYTES, most_depth: int = MOST_DEPTH) -> Any:
    """The value of a JSON text that a site sent; ``Malformed`` where it is none, too large, too deep or not finite.

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
