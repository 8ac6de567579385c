"""Hypothesis strategies for wrong values and damaged files, and what their readers must do."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import date, time
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedmm.core.errors import FedmmError

T = TypeVar("T")
_EFFORT = int(os.environ.get("FEDMM_FUZZ_EXAMPLES", "1"))


def examples(count: int) -> settings:
    """Return settings for ``count`` examples, times FEDMM_FUZZ_EXAMPLES."""
    return settings(
        max_examples=count * _EFFORT, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


def answered(call: Callable[[], T]) -> T | None:
    """Return the result, or None if the call was refused with one printable line."""
    try:
        return call()
    except FedmmError as refusal:
        told = str(refusal)
    assert told.strip()
    assert told.isprintable()
    return None


# Values ---------------------------------------------------------------------------------------------------------------

NUMBERS: list[Any] = [
    -1, 0, 1, 2, 3, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**64), 10**400, True, False,
    -1.0, -0.0, 0.0, 5e-324, 1e-12, 0.5, 1.0, 1.5, 1e308, math.inf, -math.inf, math.nan,
]  # fmt: skip
WORDS = [
    "", " ", ".", "..", "../../x", "/", "/etc/passwd", "a/b", "a\\b", "~", "-", "--help", "name", "auto", "cpu",
    "cuda:x", "nul", "CON", "a\x00b", "\n", "a\nb", "\x1b[31m", "\r", "\ud800", "\udcff", "é", "\N{GRINNING FACE}",
    "\u202e", "$\\frac{", "[bold]", "%s{}", "x" * 300, "NaN", "null", "constant", "*", "features", "source-1",
]  # fmt: skip
TEXT = st.sampled_from(WORDS) | st.text(st.characters(), max_size=6)
PLAIN = st.sampled_from(NUMBERS) | TEXT | st.sampled_from([date(2020, 1, 2), time(1, 2, 3)])
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


# Files ----------------------------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Return a file's bytes after one to three faults: cut, bits or bytes changed, parts swapped, doubled or lost."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.integers(0, max(len(content) - 1, 0)))
        near = draw(st.integers(0, min(len(content), 64)))
        at = draw(st.sampled_from([where, near]))
        length = draw(st.integers(1, 16))
        match draw(st.sampled_from(["flip", "byte", "cut", "swap", "lose", "double", "zeros", "ones", "insert"])):
            case "flip" if content:
                content[at % len(content)] ^= 1 << draw(st.integers(0, 7))
            case "byte" if content:
                content[at % len(content)] = draw(st.integers(0, 255))
            case "cut":
                del content[at:]
            case "swap":
                content[at : at + 2 * length] = content[at + length : at + 2 * length] + content[at : at + length]
            case "lose":
                del content[at : at + length]
            case "double":
                content[at:at] = content[at : at + length]
            case "zeros":
                content[at : at + length] = bytes(len(content[at : at + length]))
            case "ones":
                content[at : at + length] = b"\xff" * len(content[at : at + length])
            case _:
                content[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(content)


@st.composite
def damaged_text(draw: st.DrawFn, whole: bytes) -> bytes:
    """Return a text file, damaged like any file or with words replaced by nearly valid ones."""
    if draw(st.booleans()):
        return draw(damaged(whole))
    tokens = whole.split(b" ")
    for _ in range(draw(st.integers(1, 3))):
        tokens[draw(st.integers(0, len(tokens) - 1))] = draw(st.sampled_from(_TOKENS))
    return b" ".join(tokens)


_TOKENS = [
    b"", b"=", b"[", b"]", b"{", b"}", b"[[", b'"', b"'''", b"\n", b"null", b"nan", b"-inf", b"NaN", b"Infinity",
    b"1e999", b"-1", b"true", b"9" * 400, b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"\xff\xfe", b"\x00",
    b"\xed\xa0\x80", b'"\\ud800"', b'"\\u0000"', b"1979-05-27", b"extends = '.'\n", b"a.b.c = 1\n", b'"../../x"', b"{}",
    b"[]", b"\xef\xbb\xbf",
]  # fmt: skip
