"""How a table is written: encoding, separator, decimal mark and header of a file, numbers and dates in its cells."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple, TextIO, TypeVar

from fedmm.core.errors import FedmmError, require
from fedmm.core.site_data import Decimal, TableKeys
from fedmm.core.validation import flag, one_of

TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".data", ".txt")
PARQUET = (".parquet", ".pq")
EXCEL = (".xlsx", ".xlsm")
TABLES = TEXT + PARQUET + EXCEL

_MARKS = (";", "\t", "|", ",", " ")
_LOOKED_AT = 1_000_000
_LINES, _MOST_LINES = 50, 5000
T = TypeVar("T")

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


@dataclass(frozen=True)
class TableFormat:
    """How the cells of a file are to be read.

    separator, decimal, encoding: of a text file. header: whether its first line names the columns; without, ``names``
    do, or they are called c1, c2 and so on. missing: what else than an empty cell is none, in every column;
    zero_missing: columns in which 0 is none. sheet: of an Excel workbook that has several.
    """

    separator: str = ","
    decimal: Decimal = "."
    encoding: str = "utf-8"
    header: bool = True
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    zero_missing: tuple[str, ...] = ()
    sheet: str = ""

    def __post_init__(self) -> None:
        words = all(isinstance(each, str) for each in (self.separator, self.encoding, self.sheet))
        require(words, "separator, encoding and sheet must be text")
        require(len(self.separator) == 1, f"separator must be one letter, not {self.separator!r}")
        one_of("decimal", self.decimal, (".", ","))
        flag("header", self.header)
        require(_is_text_codec(self.encoding), f"encoding must be one such as utf-8, latin-1 or utf-16, not "
                f"{self.encoding!r:.60}")  # fmt: skip
        for name in ("names", "missing", "zero_missing"):
            value = getattr(self, name)
            listed = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
            require(listed, f"{name} must be a list of words, not {value!r:.60}")
        require(len(set(self.names)) == len(self.names), "columns must have a name of its own for each column")

    @classmethod
    def of(cls, keys: TableKeys) -> TableFormat:
        """The format that the keys of a file's ``[data]`` say."""
        values = {each.name: getattr(keys, each.name) for each in fields(TableKeys)}
        return cls(names=values.pop("columns"), **values)


def _is_text_codec(name: str) -> bool:
    try:
        found = codecs.lookup(name)
        return bool("a".encode(name)) and bool(getattr(found, "_is_text_encoding", True))
    except (LookupError, ValueError, TypeError):
        return False


def detect_format(paths: Sequence[Path]) -> TableFormat:
    """How text files of one form are probably written; other files have the default format."""
    found, beginnings = [], []
    for path in paths:
        if path.name.lower().endswith(TEXT):
            beginnings.append((path, _beginning(path)))
    encoding = _one([(path, detect_encoding(content)) for path, content in beginnings if not content.isascii()],
                    "encoding", "utf-8")  # fmt: skip
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
        header=_one([(path, not looks_like_data(rows[0], decimal)) for path, _, rows in found if rows], "header", True),
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


def open_text(path: Path, encoding: str) -> TextIO:
    """A text file, packed or not, with its line ends as they are."""
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def _beginning(path: Path) -> bytes:
    try:
        if path.name.lower().endswith(".gz"):
            with gzip.open(path) as file:
                return file.read(_LOOKED_AT)
        with path.open("rb") as file:
            return file.read(_LOOKED_AT)
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
        counts = [len(row) for row in csv.reader(io.StringIO("\n".join(lines[:_LINES])), delimiter=mark)]
        if not counts or counts[0] < 2:
            return 0, 0
        return sum(count == counts[0] for count in counts), counts[0]

    best = max(_MARKS, key=fit)
    return best if fit(best)[1] else ","


def looks_like_data(cells: list[str], decimal: str = ".") -> bool:
    """Whether a first line holds numbers and gaps alone, and so names no column."""
    kinds = [read_cell(cell.strip(), decimal).kind for cell in cells]
    return "number" in kinds and "word" not in kinds


def _decimal(rows: list[list[str]]) -> Decimal:
    """A comma where more cells are numbers with one than with a point; a comma before three digits may be either."""
    with_comma = with_point = 0
    for row in rows:
        for cell in row:
            text = cell.strip().lstrip("<>≤≥= ").rstrip("% ")
            whole, mark, digits = text.lstrip("+-").rpartition(",")
            if mark and digits.isdecimal() and len(digits) != 3 and whole.replace(".", "").isdecimal():
                with_comma += 1
            whole, mark, digits = text.lstrip("+-").rpartition(".")
            if mark and digits.isdecimal() and len(digits) != 3 and whole.replace(",", "").isdecimal():
                with_point += 1
    return "," if with_comma > with_point else "."


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
