"""How a table is written: encoding, separator, decimal mark and header of a file, numbers and dates in its cells."""

from __future__ import annotations

import codecs
import gzip
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

from fedmm.core.errors import require
from fedmm.core.files import Decimal, TableKeys
from fedmm.core.validation import flag, one_of

TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".data", ".txt")
PARQUET = (".parquet", ".pq")
EXCEL = (".xlsx", ".xlsm")
TABLES = TEXT + PARQUET + EXCEL


MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?")
"""Cells that are missing values in numeric and categorical columns; in other columns only empty cells are."""

Kind = Literal["missing", "number", "percent", "censored", "word"]

_TRUTHS = {"True": 1.0, "true": 1.0, "TRUE": 1.0, "False": 0.0, "false": 0.0, "FALSE": 0.0}
_LIMIT = re.compile(r"[<>≤≥]=?\s*(.+)")
_NAMED_LIMIT = re.compile(r"[A-Za-z][A-Za-z.]{0,11}")
_GROUPED = {
    ".": re.compile(r"[+-]?(\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}|\d{1,3}([ '\u2019\u00a0\u202f]\d{3})+(\.\d+)?)"),
    ",": re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+|\d{1,3}([ '\u2019\u00a0\u202f]\d{3})+)(,\d*)?([eE][+-]?\d+)?"),
}
_BETWEEN_GROUPS = re.compile(r"[ '\u2019\u00a0\u202f]")


@dataclass(frozen=True)
class TableFormat:
    """How to read the cells of a file.

    separator, decimal, encoding: of a text file. header: whether the first line names the columns; if not, ``names``
    does, or they are called c1, c2 and so on. missing: further codes for missing values, in every column; zero_missing:
    columns in which 0 means missing. sheet: of an Excel workbook that has several.
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
        words = all(isinstance(word, str) for word in (self.separator, self.encoding, self.sheet))
        require(words, "separator, encoding and sheet must be text")
        require(len(self.separator) == 1, f"separator must be one character, not {self.separator!r}")
        one_of("decimal", self.decimal, (".", ","))
        flag("header", self.header)
        require(_is_text_codec(self.encoding), "encoding must be a text encoding such as utf-8, latin-1 or utf-16, not "
                f"{self.encoding!r:.60}")  # fmt: skip
        for name in ("names", "missing", "zero_missing"):
            value = getattr(self, name)
            listed = isinstance(value, tuple) and all(isinstance(word, str) for word in value)
            require(listed, f"{name} must be a list of words (a tuple in Python), not {value!r:.60}")
        require(len(set(self.names)) == len(self.names), "columns must give each column a different name")

    def separator_of(self, path: Path) -> str:
        """Return a file's separator: a tab for .tsv files unless one other than a comma is set."""
        return "\t" if self.separator == "," and path.name.lower().endswith((".tsv", ".tsv.gz")) else self.separator

    @classmethod
    def of(cls, keys: TableKeys) -> TableFormat:
        """Build the format from the keys of a ``[data]`` section."""
        values = {field.name: getattr(keys, field.name) for field in fields(TableKeys)}
        return cls(names=values.pop("columns"), **values)


def _is_text_codec(name: str) -> bool:
    try:
        found = codecs.lookup(name)
        return bool("a".encode(name)) and bool(getattr(found, "_is_text_encoding", True))
    except (LookupError, ValueError, TypeError):
        return False


def open_text(path: Path, encoding: str) -> TextIO:
    """Open a text file, gzipped or not, without translating line ends."""
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


class Cell(NamedTuple):
    """A cell's value as a number, NaN if it has none, and the kind of cell."""

    value: float
    kind: Kind


def read_cell(text: str, decimal: str = ".") -> Cell:
    """Parse a cell as a number.

    ``<0.5`` is 0.5, the limit up to which something could be measured; a limit without a number, such as ``<LOD``, is
    missing. ``12 %`` is 12. A comma or point is read as a thousands separator only if it can be nothing else.
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
        number = math.nan if "_" in text else float(text)  # float() would read 1_11 as 111
    except ValueError:
        return None
    return number if math.isfinite(number) else None
