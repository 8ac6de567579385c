"""Predictions as a table: a row's name, its predicted class, and a column of probabilities for each class."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import atomic_write
from fedmm.inference.predict import Predicted

_CSV, _PARQUET = (".csv", ".csv.gz"), (".parquet", ".pq")
Write = Callable[[Predicted], None]


def column_names(class_names: Sequence[str]) -> list[str]:
    """``row``, ``predicted`` and ``p_<class>`` for each class."""
    return ["row", "predicted", *(f"p_{name}" for name in class_names)]


def require_ending(path: Path) -> None:
    """Refuse a name that says no format."""
    known = path.name.lower().endswith(_CSV + _PARQUET)
    require(known, f"--out {path} must end in .csv, .csv.gz or .parquet; - is standard output")


@contextmanager
def prediction_file(path: Path, class_names: Sequence[str]) -> Iterator[Write]:
    """A file to write predictions to part by part; it gets its name when all are there."""
    require_ending(path)
    parquet = path.name.lower().endswith(_PARQUET)
    with atomic_write(path) as partial:
        if parquet:
            with _parquet(partial, class_names) as write:
                yield write
        elif path.name.lower().endswith(".gz"):
            import gzip  # noqa: PLC0415 - only for such files

            with gzip.open(partial, "wt", encoding="utf-8", newline="") as stream:
                yield csv_stream(stream, class_names)
        else:
            with partial.open("w", encoding="utf-8", newline="") as stream:
                yield csv_stream(stream, class_names)


def csv_stream(stream: IO[str] | io.TextIOBase, class_names: Sequence[str]) -> Write:
    """Write the headings now, and predictions as they come."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_plain(column_names(class_names)))

    def write(part: Predicted) -> None:
        guesses, probabilities = part.classes.tolist(), part.logarithms.exp().tolist()
        writer.writerows(
            [*_plain([name, class_names[guess]]), *(f"{value:.7g}" for value in row)]
            for name, guess, row in zip(part.names, guesses, probabilities, strict=True)
        )

    return write


def _plain(words: Sequence[str]) -> list[str]:
    """Names of files may hold bytes that are no text."""
    return [word.encode("utf-8", "backslashreplace").decode("utf-8") for word in words]


@contextmanager
def _parquet(path: Path, class_names: Sequence[str]) -> Iterator[Write]:
    try:
        import pyarrow  # noqa: PLC0415 - an optional dependency
        from pyarrow import parquet  # noqa: PLC0415 - an optional dependency
    except ImportError as problem:
        raise FedmmError("a .parquet file needs pyarrow: pip install 'fedmm[tables]'") from problem
    headings = _plain(column_names(class_names))
    kinds = [pyarrow.string(), pyarrow.string(), *[pyarrow.float32()] * len(class_names)]
    schema = pyarrow.schema(list(zip(headings, kinds, strict=True)))
    with parquet.ParquetWriter(path, schema) as writer:

        def write(part: Predicted) -> None:
            guesses = [class_names[guess] for guess in part.classes.tolist()]
            probabilities = part.logarithms.exp().float().numpy()
            columns: list[Any] = [_plain(part.names), _plain(guesses), *probabilities.T]
            writer.write_table(
                pyarrow.table([pyarrow.array(c, k) for c, k in zip(columns, kinds, strict=True)], schema)
            )

        yield write
