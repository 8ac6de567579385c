"""Read tables from text, Parquet and Excel files; pandas, pyarrow and openpyxl are imported only when needed."""

from __future__ import annotations

import csv
import datetime
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmm.core.errors import FedmmError, first_line, require
from fedmm.data.readers.table_formats import (
    EXCEL,
    MISSING,
    PARQUET,
    TABLES,
    Kind,
    TableFormat,
    open_text,
    read_cell,
)

if TYPE_CHECKING:
    import pandas

_WHOLE = re.compile(r"-?\d+\.0")
_NAMELESS = re.compile(r"Unnamed: \d+")
"""How pandas names a column without a name."""
_OTHER_MARKS = (";", "\t", "|", ",")
_EPOCH = "1970-01-01"


def read_table(
    path: Path,
    format: TableFormat | None = None,
    texts: Collection[str] = (),
    words: Collection[str] = (),
    may_lack: str = "",
) -> pandas.DataFrame:
    """Read a file as a pandas table with one row per line; drop columns without a name.

    texts: columns kept as written, in which only an empty cell is missing; words: columns kept as written, in which the
    words of ``MISSING`` are missing too. may_lack: a column of ``format.names`` that a file without header may omit.
    """
    format = format or TableFormat()
    try:
        import pandas  # noqa: PLC0415 - an optional dependency, and slow to import
    except ImportError as problem:
        raise FedmmError("tables need pandas and pyarrow: pip install 'fedmm[tables]'") from problem
    name = path.name.lower()
    require(path.is_file(), f"{path} is not a file; name a table ({', '.join(TABLES)})")
    require(not name.endswith(".xls"), f"{path} is an old Excel workbook; save it as .xlsx, or as CSV")
    require(name.endswith(TABLES), f"{path} must be a table: {', '.join(TABLES)}")
    try:
        if name.endswith(PARQUET):
            frame = _parquet(path, pandas)
        elif name.endswith(EXCEL):
            frame = _excel(path, format, texts, words, may_lack, pandas)
        else:
            frame = _text_file(path, format, texts, words, may_lack, pandas)
    except FedmmError:
        raise
    except ImportError as problem:
        needs = ("openpyxl", "excel") if name.endswith(EXCEL) else ("pyarrow", "tables")
        raise FedmmError(f"{path} cannot be read without {needs[0]}: pip install 'fedmm[{needs[1]}]'") from problem
    except UnicodeError as problem:
        raise FedmmError(
            f"{path} cannot be read as a table: it is not written in {format.encoding}; set data.encoding = 'latin-1' "
            "or 'utf-16', or the encoding that it has (--encoding of predict and evaluate)"
        ) from problem
    except Exception as problem:  # readers may raise anything on a malformed file
        reason = first_line(problem)
        raise FedmmError(f"{path} cannot be read as a table: {reason}") from problem
    frame.columns = [str(column) for column in frame.columns]
    twice = sorted({column for column in frame.columns if list(frame.columns).count(column) > 1})
    require(not twice, f"{path} has two columns {twice[0] if twice else ''!r}; give each column its own name")
    require(len(frame) > 0, f"{path} has no rows")
    return _without_missing(frame, format)


def _text_file(
    path: Path, format: TableFormat, texts: Collection[str], words: Collection[str], may_lack: str, pandas: Any
) -> pandas.DataFrame:
    separator = format.separator_of(path)
    common = {"sep": separator, "encoding": format.encoding, "compression": "infer"}
    head = pandas.read_csv(path, nrows=0, **common)
    columns, header = [str(column) for column in head.columns], format.header
    if not header:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = pandas.read_csv(path, nrows=1, header=None, dtype="str", keep_default_na=False, **common)
        columns, header = _names(list(map(str, first.iloc[0])) if len(first) else columns, format, may_lack, path)
    if len(columns) == 1:
        other = next((mark for mark in _OTHER_MARKS if mark in str(head.columns[0])), None)
        require(
            other is None,
            f"{path} seems to have its cells separated by {other!r}: set data.separator = {other!r} (--separator of "
            "predict and evaluate)",
        )
    options = common | _cell_options(columns, header, format, texts, words)
    options |= {"decimal": format.decimal, "index_col": False, "low_memory": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        try:
            frame: pandas.DataFrame = pandas.read_csv(path, **options)
        except pandas.errors.ParserWarning:
            _require_no_more_cells(path, format, separator, len(columns))
            warnings.simplefilter("ignore", pandas.errors.ParserWarning)
            frame = pandas.read_csv(path, **options)
    return _without_nameless(frame)


def _cell_options(
    columns: list[str], header: bool, format: TableFormat, texts: Collection[str], words: Collection[str]
) -> dict[str, Any]:
    """Return the options that both pandas readers take for these columns."""
    return {
        "header": 0 if header else None,
        **({} if format.header else {"names": columns}),
        "keep_default_na": False,
        "na_values": {column: [""] if column in texts else list(MISSING) for column in columns},
        "dtype": {column: "object" for column in columns if column in texts or column in words},
    }


def _require_no_more_cells(path: Path, format: TableFormat, separator: str, columns: int) -> None:
    """Raise FedmmError for rows with extra cells that are not empty, which pandas would drop silently."""
    with open_text(path, format.encoding) as file:
        for number, cells in enumerate(csv.reader(file, delimiter=separator), start=1):
            require(
                not any(cell.strip() for cell in cells[columns:]),
                f"{path} has {len(cells)} cells in line {number}, but {columns} columns; is a comma inside a cell that "
                "is not in quotes?",
            )


def _names(first: list[str], format: TableFormat, may_lack: str, path: Path) -> tuple[list[str], bool]:
    """Name the columns of a file said to have no header; also return whether its first line is one all the same."""
    if not format.names:
        return [f"c{number}" for number in range(1, len(first) + 1)], False
    cells = [cell.strip() for cell in first]
    if set(cells) <= set(format.names) and len(set(cells)) == len(cells):
        return cells, True
    names = list(format.names)
    if len(first) == len(names) - 1 and may_lack in names:
        names.remove(may_lack)
    require(
        len(names) == len(first),
        f"the first line of {path} has {len(first)} cells, but {len(format.names)} columns are named in data.columns; "
        "each must be named, and the line removed if it is a comment",
    )
    return names, False


def _excel(
    path: Path, format: TableFormat, texts: Collection[str], words: Collection[str], may_lack: str, pandas: Any
) -> pandas.DataFrame:
    with pandas.ExcelFile(path, engine="openpyxl") as book:
        sheets = [str(name) for name in book.sheet_names]
        listed = ", ".join(sheets)
        require(
            len(sheets) == 1 or bool(format.sheet), f"{path} has several sheets; set data.sheet to one of: {listed}"
        )
        sheet = format.sheet if len(sheets) > 1 else sheets[0]
        require(sheet in sheets, f"{path} has no sheet {sheet!r}, which data.sheet names; it has {listed}")
        head = pandas.read_excel(
            book, sheet_name=sheet, header=0 if format.header else None, nrows=1, keep_default_na=False
        )
        columns, header = [str(column) for column in head.columns], format.header
        if not header:
            columns, header = _names(_texts(head.iloc[0]) if len(head) else columns, format, may_lack, path)
        options = _cell_options(columns, header, format, texts, words)
        frame: pandas.DataFrame = pandas.read_excel(book, sheet_name=sheet, **options)
    return _without_nameless(frame).dropna(how="all").reset_index(drop=True)


def _without_nameless(frame: pandas.DataFrame) -> pandas.DataFrame:
    return frame.drop(columns=[column for column in frame.columns if _NAMELESS.fullmatch(str(column))])


def _parquet(path: Path, pandas: Any) -> pandas.DataFrame:
    frame: pandas.DataFrame = pandas.read_parquet(path)
    return frame.reset_index(drop=all(name is None for name in frame.index.names))


def _without_missing(frame: pandas.DataFrame, format: TableFormat) -> pandas.DataFrame:
    """Replace the format's codes for missing values by missing values."""
    if not format.missing and not format.zero_missing:
        return frame
    zeros = [column for column in format.zero_missing if column in frame.columns]
    codes = {cell.value for text in format.missing if (cell := read_cell(text, format.decimal)).kind == "number"}
    changed = {}
    for name in frame.columns:
        column = frame[name]
        if column.dtype.kind in "iuf":
            gone = column.isin(codes | ({0.0} if name in zeros else set())).to_numpy()
        else:
            none = {*format.missing, *({"0"} if name in zeros else ())}
            gone = np.array([text in none for text in texts(column)], dtype=bool)
        changed[name] = column.mask(gone) if bool(gone.any()) else column
    return frame.assign(**changed)


class JoinedTables(NamedTuple):
    """Several files as one table; sites: each row's site; lacking: columns that a site's file does not have."""

    frame: pandas.DataFrame
    sites: list[str]
    lacking: dict[str, tuple[str, ...]]


def read_tables(
    files: Mapping[str, Path],
    format: TableFormat | None = None,
    texts: Collection[str] = (),
    words: Collection[str] = (),
    may_lack: str = "",
) -> JoinedTables:
    """Read the tables of several sites and concatenate their rows; columns that a file lacks are missing there."""
    import pandas  # noqa: PLC0415 - read_table reports a missing pandas

    frames = {site: read_table(path, format, texts, words, may_lack) for site, path in files.items()}
    names = list(dict.fromkeys(name for frame in frames.values() for name in frame.columns))
    lacking = {site: tuple(name for name in names if name not in frame.columns) for site, frame in frames.items()}
    columns = {
        name: pandas.concat(
            [
                frame[name].astype("object")
                if name in frame.columns
                else pandas.Series([None] * len(frame), dtype="object")
                for frame in frames.values()
            ],
            ignore_index=True,
        ).infer_objects()
        for name in names
    }
    sites = [site for site, frame in frames.items() for _ in range(len(frame))]
    return JoinedTables(
        pandas.DataFrame(columns), sites, {site: columns for site, columns in lacking.items() if columns}
    )


def name_files(files: Mapping[str, Path]) -> str:
    """Return the name of the files for messages."""
    first, *others = map(str, files.values())
    return f"{first} and {len(others)} more" if others else first


def require_columns(frame: pandas.DataFrame, wanted: Iterable[str], path: Path | str, why: str) -> None:
    """Raise FedmmError if the table lacks a column."""
    import difflib  # noqa: PLC0415 - only for an error

    columns = list(frame.columns)
    for column in wanted:
        if column not in columns:
            near = difflib.get_close_matches(column, columns, n=2)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise FedmmError(f"{path} has no column {column!r}, {why}{hint} (columns: {', '.join(columns)})")


def texts(column: pandas.Series) -> list[str]:
    """Return each row's text without surrounding spaces; empty if missing.

    Whole numbers that became floats because some values are missing are written as whole numbers again.
    """
    return ["" if gone else _text(value) for value, gone in zip(column.tolist(), column.isna().tolist(), strict=True)]


_texts = texts  # for functions with an argument of that name


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).strip()
    return text.removesuffix(".0") if _WHOLE.fullmatch(text) else text


def is_dates(column: pandas.Series) -> bool:
    """Return whether a column already holds date objects, as Parquet and Excel files may."""
    if column.dtype.kind == "M":
        return True
    given = column.dropna().tolist() if column.dtype.kind == "O" else []
    return bool(given) and all(isinstance(value, datetime.date) for value in given)


def is_plain(column: pandas.Series) -> bool:
    """Return whether a column holds only numbers, words or truth values, and no dates, times, lists or tables."""
    strange = (datetime.date, datetime.time, datetime.timedelta, list, dict, tuple, set, np.ndarray)
    return column.dtype.kind not in "Mm" and not (
        column.dtype.kind == "O" and any(isinstance(value, strange) for value in column.tolist())
    )


def is_numeric(column: pandas.Series, decimal: str = ".") -> bool:
    """Return whether all values of a column that are not missing are numbers or truth values.

    Limits such as ``<0.5`` count as numbers among others; if most cells are limits, such as ``<40`` and ``>=40``, they
    count as words.
    """
    if column.dtype.kind in "biuf":
        return True
    kinds = cell_kinds(column, decimal)
    return not kinds["word"] and (not kinds["censored"] or kinds["censored"] < kinds["number"] + kinds["percent"])


def cell_kinds(column: pandas.Series, decimal: str = ".") -> Counter[Kind]:
    """Count the cells of a column by kind."""
    if column.dtype.kind in "biuf":
        gone = int(column.isna().sum())
        return Counter({"number": len(column) - gone, "missing": gone})
    return Counter(read_cell(text, decimal).kind for text in texts(column))


def numbers(column: pandas.Series, what: str, decimal: str = ".") -> NDArray[np.float64]:
    """Return a column's numbers, float64 ``[rows]``, NaN if missing; truth values are 1 and 0."""
    if column.dtype.kind in "biuf":
        found: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
        bad = np.flatnonzero(np.isinf(found))
        require(
            not len(bad), f"{what} is infinite in row {column.index[bad[0]] + 1 if len(bad) else ''}; remove or fill it"
        )
        return found
    written = texts(column)
    cells = [read_cell(text, decimal) for text in written]
    for row, text, cell in zip(column.index, written, cells, strict=True):
        if cell.kind == "word":
            raise FedmmError(
                f"{what} holds {text:.40} in row {row + 1}, which is not a number{_other_mark(text, decimal)}"
            )
    return np.array([cell.value for cell in cells], dtype=np.float64)


def _other_mark(text: str, decimal: str) -> str:
    other = "," if decimal == "." else "."
    if other not in text or read_cell(text, other).kind == "word":
        return ""
    return (
        f" with {decimal!r} as its decimal mark; set data.decimal = {other!r} if it is one with {other!r} (--decimal)"
    )


def as_days(column: pandas.Series, format: str, what: str) -> NDArray[np.float64]:
    """Convert dates to days since 1970, float64 ``[rows]``, NaN if missing; format: of dates written as text."""
    import pandas  # noqa: PLC0415 - the column is pandas' own

    if is_dates(column):
        moments = pandas.to_datetime(column, utc=True)
        days: NDArray[np.float64] = (
            (moments - pandas.Timestamp(_EPOCH, tz="UTC")) / pandas.Timedelta(days=1)
        ).to_numpy(dtype=np.float64, na_value=np.nan)
        return days
    found = np.full(len(column), np.nan)
    first = datetime.datetime.fromisoformat(_EPOCH)
    for row, text in enumerate(texts(column)):
        if text in MISSING:
            continue
        try:
            moment = datetime.datetime.strptime(text, format).replace(tzinfo=None)
        except ValueError as problem:
            raise FedmmError(
                f"{what} holds {text:.40} in row {row + 1}, which is not a date of the form {format!r} of data.dates"
            ) from problem
        found[row] = (moment - first) / datetime.timedelta(days=1)
    return found
