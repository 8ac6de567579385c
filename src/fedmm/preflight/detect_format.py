"""Guess how a table is written: its encoding, separator, decimal mark, header and date formats."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import Decimal
from fedmm.data.readers.table_formats import MISSING, TEXT, TableFormat, read_cell

_MARKS = (";", "\t", "|", ",", " ")
_LOOKED_AT = 1_000_000
LINES, _MOST_LINES = 50, 5000
T = TypeVar("T")

DATE_FORMATS = (
    "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%y",
    "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%b-%Y", "%d %b %Y",
)  # fmt: skip
"""The formats that :func:`date_formats` tries; ``data.dates`` takes any."""


def detect_format(paths: Sequence[Path]) -> TableFormat:
    """Guess the format that the text files must share; the default if there are none."""
    found, beginnings = [], []
    for path in paths:
        if path.name.lower().endswith(TEXT):
            beginnings.append((path, _beginning(path)))
    telling = [(path, _beginning(path, telling=True) if content.isascii() else content) for path, content in beginnings]
    encoding = _one([(path, detect_encoding(content)) for path, content in telling if content], "encoding", "utf-8")
    for path, content in beginnings:
        lines = content.decode(encoding, errors="replace").lstrip("\ufeff").splitlines()
        if len(content) >= _LOOKED_AT:
            lines = lines[:-1]
        lines = [line for line in lines if line.strip()][:_MOST_LINES]
        try:
            separator = _separator(lines)
            found.append((path, separator, list(csv.reader(lines, delimiter=separator))))
        except csv.Error as problem:
            raise FedmmError(f"{path} cannot be read as a table: {problem}") from problem
    decimal = _decimal([row for _, _, rows in found for row in rows[1:]])
    return TableFormat(
        separator=_one([(path, separator) for path, separator, _ in found], "separator", ","),
        decimal=decimal,
        encoding=encoding,
        header=_one([(path, not looks_like_data(rows, decimal)) for path, _, rows in found if rows], "header", True),
    )


def _one(found: Sequence[tuple[Path, T]], what: str, default: T) -> T:
    """Return the value that all files share; refuse files that differ."""
    if not found:
        return default
    path, value = found[0]
    for other, another in found:
        require(
            another == value,
            f"{path} and {other} are not written alike ({what} {value!r} and {another!r}); bring them to one form",
        )
    return value


def _beginning(path: Path, *, telling: bool = False) -> bytes:
    """Return the first part of a file; telling: the first part that is not pure ASCII, empty if all are."""
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
            while True:
                part = file.read(_LOOKED_AT)
                if not telling or not part or not part.isascii():
                    return part
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise FedmmError(f"{path} cannot be read: {reason}") from problem


def detect_encoding(content: bytes) -> str:
    """Return UTF-16 or UTF-8 if the bytes show it, otherwise an encoding of Western European text."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if content.count(b"\0") > len(content) // 5:
        return "utf-16-le" if content[1::2].count(b"\0") > content[::2].count(b"\0") else "utf-16-be"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)  # a character cut off at the end is no error
        return "utf-8"
    except UnicodeDecodeError:
        return "cp1252" if any(0x80 <= byte <= 0x9F for byte in content) else "latin-1"


def _separator(lines: list[str]) -> str:
    """Return the mark that splits the most lines into as many cells as the first; the most cells break ties."""

    def fit(mark: str) -> tuple[int, int]:
        counts = [len(row) for row in csv.reader(io.StringIO("\n".join(lines[:LINES])), delimiter=mark)]
        if not counts or counts[0] < 2:
            return 0, 0
        return sum(count == counts[0] for count in counts), counts[0]

    best = max(_MARKS, key=fit)
    return best if fit(best)[1] else ","


def looks_like_data(rows: Sequence[list[str]], decimal: str = ".") -> bool:
    """Return whether the first line is data, not a header.

    It is if it holds a number and either no word or a word that recurs further down in the same column.
    """
    first, *below = [[cell.strip() for cell in row] for row in rows]
    words = [place for place, cell in enumerate(first) if read_cell(cell, decimal).kind == "word"]
    if not any(read_cell(cell, decimal).kind == "number" for cell in first):
        return False
    return not words or any(first[place] == row[place] for row in below for place in words if place < len(row))


def _decimal(rows: list[list[str]]) -> Decimal:
    """Return a comma if more cells are numbers with a decimal comma than with a decimal point, otherwise a point.

    A mark before exactly three digits may separate thousands, so it counts only after a lone 0.
    """
    found = {",": 0, ".": 0}
    for row in rows:
        for cell in row:
            text = cell.strip().lstrip("<>≤≥= ").rstrip("% ").lstrip("+-")
            for mark, thousands in ((",", "."), (".", ",")):
                whole, there, digits = text.rpartition(mark)
                plain = there and digits.isdecimal() and whole.replace(thousands, "").isdecimal()
                found[mark] += bool(plain and (len(digits) != 3 or whole == "0"))
    return "," if found[","] > found["."] else "."


def date_formats(texts: list[str]) -> list[str]:
    """Return the formats by which all texts that are not missing are dates; none if all are missing."""
    given = sorted({text for text in texts if text not in MISSING})
    return [form for form in DATE_FORMATS if given and all(_is_date(text, form) for text in given)]


def _is_date(text: str, format: str) -> bool:
    try:
        datetime.strptime(text, format)
    except ValueError:
        return False
    return True
