"""Tables from CSV and Parquet files; pandas and pyarrow are asked for where one is read."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmm.core.errors import FedmmError, require

if TYPE_CHECKING:
    import pandas

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?")
"""What a column of numbers or categories says where it says nothing; in other columns only nothing is missing."""

_CSV, _PARQUET = (".csv", ".csv.gz", ".tsv", ".tsv.gz"), (".parquet", ".pq")
_WHOLE = re.compile(r"-?\d+\.0")
_NAMELESS = re.compile(r"Unnamed: \d+")
"""What pandas calls a column without a name."""
_TRUTHS = {"True": 1.0, "true": 1.0, "TRUE": 1.0, "False": 0.0, "false": 0.0, "FALSE": 0.0}


def read_table(
    path: Path, separator: str, texts: Collection[str] = (), words: Collection[str] = ()
) -> pandas.DataFrame:
    """A file as a pandas table with a row for each of its lines; columns without a name are left out.

    separator: between the cells of a CSV. texts: columns kept as they are written, in which only an empty cell is
    missing; words: columns kept as they are written, in which the words of ``MISSING`` are too.
    """
    try:
        import pandas  # noqa: PLC0415 - an optional dependency, and slow to import
    except ImportError as problem:
        raise FedmmError("tables need pandas and pyarrow: pip install 'fedmm[tables]'") from problem
    name = path.name.lower()
    require(path.is_file(), f"{path} is no file; name a table (.csv, .csv.gz, .tsv or .parquet)")
    require(name.endswith(_CSV + _PARQUET), f"{path} must be a .csv, .csv.gz, .tsv, .tsv.gz or .parquet file")
    try:
        frame = _parquet(path, pandas) if name.endswith(_PARQUET) else _csv(path, separator, texts, words, pandas)
    except FedmmError:
        raise
    except ImportError as problem:
        raise FedmmError(f"{path} cannot be read without pyarrow: pip install 'fedmm[tables]'") from problem
    except Exception as problem:  # a file that is not what it seems may be any problem to its reader
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise FedmmError(f"{path} cannot be read as a table: {reason}") from problem
    frame.columns = [str(column) for column in frame.columns]
    twice = sorted({column for column in frame.columns if list(frame.columns).count(column) > 1})
    require(not twice, f"{path} has two columns {twice[0] if twice else ''!r}; give each a name of its own")
    require(len(frame) > 0, f"{path} has no rows")
    return frame


def _csv(path: Path, separator: str, texts: Collection[str], words: Collection[str], pandas: Any) -> pandas.DataFrame:
    if separator == "," and path.name.lower().endswith((".tsv", ".tsv.gz")):
        separator = "\t"
    head = pandas.read_csv(path, sep=separator, nrows=0, encoding="utf-8", compression="infer")
    columns = [str(column) for column in head.columns]
    if len(columns) == 1:
        other = next((mark for mark in (";", "\t", "|", ",") if mark in columns[0]), None)
        require(other is None, f"{path} seems to have its cells separated by {other!r}: say data.separator = {other!r}")
    frame: pandas.DataFrame = pandas.read_csv(
        path,
        sep=separator,
        encoding="utf-8",
        compression="infer",
        index_col=False,
        low_memory=False,
        keep_default_na=False,
        na_values={column: [""] if column in texts else list(MISSING) for column in columns},
        dtype={column: "object" for column in columns if column in texts or column in words},
    )
    return frame.drop(columns=[column for column in frame.columns if _NAMELESS.fullmatch(str(column))])


def _parquet(path: Path, pandas: Any) -> pandas.DataFrame:
    frame: pandas.DataFrame = pandas.read_parquet(path)
    return frame.reset_index(drop=all(name is None for name in frame.index.names))


def require_columns(frame: pandas.DataFrame, wanted: Iterable[str], path: Path, why: str) -> None:
    """Refuse a table that lacks a column."""
    import difflib  # noqa: PLC0415 - only for an error

    columns = list(frame.columns)
    for column in wanted:
        if column not in columns:
            near = difflib.get_close_matches(column, columns, n=2)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise FedmmError(f"{path} has no column {column!r}, {why}{hint} (columns: {', '.join(columns)})")


def texts(column: pandas.Series) -> list[str]:
    """What is written in each row, without spaces around it; nothing where nothing is.

    Whole numbers that were read or written as others, since some are missing, are written as whole numbers.
    """
    return ["" if gone else _text(value) for value, gone in zip(column.tolist(), column.isna().tolist(), strict=True)]


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).strip()
    return text.removesuffix(".0") if _WHOLE.fullmatch(text) else text


def is_plain(column: pandas.Series) -> bool:
    """Whether a column holds numbers, words or truth values, and no dates, times, lists or tables."""
    strange = (datetime.date, datetime.time, datetime.timedelta, list, dict, tuple, set, np.ndarray)
    return column.dtype.kind not in "Mm" and not (
        column.dtype.kind == "O" and any(isinstance(value, strange) for value in column.tolist())
    )


def is_numeric(column: pandas.Series) -> bool:
    """Whether a column holds numbers, or truth values, wherever it holds anything."""
    if column.dtype.kind in "biuf":
        return True
    return bool(np.isfinite(_numbers(texts(column))[1]).all())


def numbers(column: pandas.Series, what: str) -> NDArray[np.float64]:
    """The numbers of a column, float64 ``[rows]``, NaN where nothing is; truth values are 1 and 0."""
    if column.dtype.kind in "biuf":
        found: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
        bad = np.flatnonzero(np.isinf(found))
        require(not len(bad), f"{what} is infinite in row {bad[0] + 1 if len(bad) else ''}; remove or fill it")
        return found
    written = texts(column)
    found, given = _numbers(written)
    bad = np.flatnonzero(~np.isfinite(given))
    require(
        not len(bad),
        f"{what} holds {written[bad[0]] if len(bad) else '':.40} in row {bad[0] + 1 if len(bad) else ''}, which is no "
        "number",
    )
    return found


def _numbers(written: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The numbers in texts, NaN where nothing is or what is there is none; and the same with 0 where nothing is."""
    found, given = np.full(len(written), np.nan), np.zeros(len(written))
    for row, text in enumerate(written):
        if text in MISSING:
            continue
        try:
            found[row] = given[row] = _TRUTHS[text] if text in _TRUTHS else float(text)
        except ValueError:
            given[row] = np.nan
    return found, given
