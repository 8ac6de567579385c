"""Numbers and dates as people write them into the cells of a table."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Literal, NamedTuple

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?")
"""What a column of numbers or categories says where it says nothing; in other columns only nothing is missing."""

Kind = Literal["missing", "number", "percent", "censored", "word"]

_TRUTHS = {"True": 1.0, "true": 1.0, "TRUE": 1.0, "False": 0.0, "false": 0.0, "FALSE": 0.0}
_LIMIT = re.compile(r"[<>≤≥]=?\s*(.+)")
_NAMED_LIMIT = re.compile(r"[A-Za-z][A-Za-z.]{0,11}")
_GROUPED = {
    ".": re.compile(r"[+-]?(\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}|\d{1,3}([ '\u2019\u00a0\u202f]\d{3})+(\.\d+)?)"),
    ",": re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+|\d{1,3}([ '\u2019\u00a0\u202f]\d{3})+)(,\d*)?([eE][+-]?\d+)?"),
}
_BETWEEN_GROUPS = re.compile(r"[ '\u2019\u00a0\u202f]")

DATE_FORMATS = (
    "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%y",
    "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%b-%Y", "%d %b %Y",
)  # fmt: skip
"""In which :func:`date_formats` looks; ``data.dates`` takes any."""


class Cell(NamedTuple):
    """What a cell says as a number, NaN where it says none, and how it says it."""

    value: float
    kind: Kind


def read_cell(text: str, decimal: str = ".") -> Cell:
    """The number that a cell holds.

    ``<0.5`` is 0.5, the limit up to which something could be measured; a limit without a number, such as ``<LOD``, is
    missing. ``12 %`` is 12. A comma or point between thousands is taken as such only where it can be nothing else.
    """
    if text in MISSING:
        return Cell(math.nan, "missing")
    number = _number(text, decimal)
    if number is not None:
        return Cell(number, "number")
    if (limit := _LIMIT.fullmatch(text)) is not None:
        number = _number(limit[1], decimal)
        if number is not None or _NAMED_LIMIT.fullmatch(limit[1]):
            return Cell(math.nan if number is None else number, "censored")
    if text.endswith("%") and (number := _number(text[:-1].rstrip(), decimal)) is not None:
        return Cell(number, "percent")
    return Cell(math.nan, "word")


def _number(text: str, decimal: str) -> float | None:
    if text in _TRUTHS:
        return _TRUTHS[text]
    text = text.replace("\N{MINUS SIGN}", "-")
    if decimal == ",":
        if not _GROUPED[","].fullmatch(text):
            return None
        text = _BETWEEN_GROUPS.sub("", text).replace(".", "").replace(",", ".")
    elif _GROUPED["."].fullmatch(text):
        text = _BETWEEN_GROUPS.sub("", text).replace(",", "")
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def date_formats(texts: list[str]) -> list[str]:
    """The formats in which all texts that are not missing are dates; none where there is no text."""
    given = sorted({text for text in texts if text not in MISSING})
    return [each for each in DATE_FORMATS if given and all(_is_date(text, each) for text in given)]


def _is_date(text: str, format: str) -> bool:
    try:
        datetime.strptime(text, format)
    except ValueError:
        return False
    return True
