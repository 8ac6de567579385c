"""How a table is probably written, where nobody says: encoding, separator, decimal mark, header, dates."""

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
"""In which :func:`date_formats` looks; ``data.dates`` takes any."""


def detect_format(paths: Sequence[Path]) -> TableFormat:
    """How text files of one form are probably written; other files have the default format."""
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
    """What all files have; files that differ are refused."""
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
    """The first part of a file; telling: of its parts the first that is not ASCII alone, empty if all are."""
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
    """UTF-8 or UTF-16 where that is plain; else what is left for texts of Western Europe."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if content.count(b"\0") > len(content) // 5:
        return "utf-16-le" if content[1::2].count(b"\0") > content[::2].count(b"\0") else "utf-16-be"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)  # a letter that is cut off at the end is no error
        return "utf-8"
    except UnicodeDecodeError:
        return "cp1252" if any(0x80 <= byte <= 0x9F for byte in content) else "latin-1"


def _separator(lines: list[str]) -> str:
    """The mark that cuts the most lines into as many cells as the first; of several, the one with the most cells."""

    def fit(mark: str) -> tuple[int, int]:
        counts = [len(row) for row in csv.reader(io.StringIO("\n".join(lines[:LINES])), delimiter=mark)]
        if not counts or counts[0] < 2:
            return 0, 0
        return sum(count == counts[0] for count in counts), counts[0]

    best = max(_MARKS, key=fit)
    return best if fit(best)[1] else ","


def looks_like_data(rows: Sequence[list[str]], decimal: str = ".") -> bool:
    """Whether a first line holds numbers and gaps alone, or a number and a word that stands below it once more.

    Such a line names no column.
    """
    first, *below = [[cell.strip() for cell in row] for row in rows]
    words = [place for place, cell in enumerate(first) if read_cell(cell, decimal).kind == "word"]
    if not any(read_cell(cell, decimal).kind == "number" for cell in first):
        return False
    return not words or any(first[place] == row[place] for row in below for place in words if place < len(row))


def _decimal(rows: list[list[str]]) -> Decimal:
    """A comma where more cells are numbers with one than with a point.

    Either may stand before three digits where it cuts off thousands, but not after a 0.
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
    """The formats in which all texts that are not missing are dates; none where there is no text."""
    given = sorted({text for text in texts if text not in MISSING})
    return [form for form in DATE_FORMATS if given and all(_is_date(text, form) for text in given)]


def _is_date(text: str, format: str) -> bool:
    try:
        datetime.strptime(text, format)
    except ValueError:
        return False
    return True
