"""Predict rows of files with a run's model, batch by batch, and write the predictions as a table."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import atomic_write, require_replaceable
from fedmm.data.datasets.per_site import PerSite
from fedmm.data.datasets.table import Table
from fedmm.data.domains import OTHER_SITES, Input, Labelled, ReadRows, RowStream
from fedmm.data.inputs import ArrayInput, ImageInput, TableInput, tell_apart
from fedmm.data.readers.arrays import ARRAYS
from fedmm.data.readers.tables import read_table, require_columns, texts
from fedmm.inference.load_run import FinishedRun
from fedmm.training.fingerprint import SOURCE_PARTS, fingerprint_pair, same_data

TEST = "test"
ASIDE = "source-validation"
OWN_ROWS = (TEST, "source-test", ASIDE)
"""Words that name rows of the run's own data set."""
_CSV, _PARQUET = (".csv", ".csv.gz"), (".parquet", ".pq")


class Predicted(NamedTuple):
    """The model's predictions for some rows.

    names: of the rows. logarithms: of the probabilities, float64 ``[rows, classes]``. y: int64 ``[rows]``, -1 without a
    label, -2 for a label that the model does not know; None if there are no labels. strange: the labels that it does
    not know. log_odds_threshold: from which on the second of two classes is predicted; None for the likeliest.
    """

    names: tuple[str, ...]
    logarithms: Tensor
    y: Tensor | None
    strange: tuple[str, ...] = ()
    log_odds_threshold: float | None = None

    @property
    def classes(self) -> Tensor:
        """The predicted class of each row, int64 ``[rows]``."""
        if self.log_odds_threshold is None:
            return self.logarithms.argmax(dim=1)
        return (self.logarithms[:, 1] - self.logarithms[:, 0] >= self.log_odds_threshold).long()


def open_rows(run: FinishedRun, path: Path, *, skip_bad: bool = False) -> RowStream:
    """Return the rows of a file or folder like the run's data; pictures are read part by part.

    skip_bad: leave out files that cannot be read as pictures, as the run did if its data says so.
    """
    run.require_rows_of_files()
    return _input(run, path).stream(path, skip_bad=skip_bad or getattr(run.experiment.data, "skip_bad", False))


def read_as(
    run: FinishedRun, *, separator: str = "", decimal: str = "", encoding: str = "", site: str = ""
) -> FinishedRun:
    """Return the run for tables in another format than its own, or of a site that they do not name."""
    if not (separator or decimal or encoding or site):
        return run
    require(run.input is not None, "--separator, --decimal, --encoding and --site are for models of tables")
    assert run.input is not None
    written = run.input.written_as(separator=separator, decimal=decimal, encoding=encoding, site=site)
    return replace(run, input=written)


def same_rows(run: FinishedRun, one: str, other: str) -> bool:
    """Return whether two names of rows, each a path or one of ``OWN_ROWS``, mean the same rows."""
    if one in OWN_ROWS and other in OWN_ROWS:
        held = _load_own_rows(run)
        return held[one] is held[other]
    return Path(one).resolve() == Path(other).resolve()


def is_training_file(run: FinishedRun, data: str) -> bool:
    """Return whether a path is a table of the run's own data set, so that some of its rows were trained on."""
    given = run.experiment.data
    own = [getattr(given, "file", ""), *getattr(given, "files", {}).values()]
    files = {Path(path).expanduser().resolve() for path in own if path}
    return data not in OWN_ROWS and Path(data).resolve() in files


def _load_own_rows(run: FinishedRun, which: str = TEST) -> dict[str, Labelled | None]:
    """Return rows of the run's own data set by their words; refuse data that changed so that ``which`` is unusable."""
    pair = run.experiment.data.load()
    require(
        which == TEST or run.fingerprint is None or same_data(run.fingerprint, fingerprint_pair(pair), SOURCE_PARTS),
        f"the data of {run.folder} has other source rows now, or deals them otherwise, than when it was trained, so "
        f"that {which} may hold rows it was trained on; name a file of other rows, or train it again",
    )
    changed = tell_apart(run.input, pair.input) if run.input and pair.input else ""
    require(
        not changed,
        f"the data of {run.folder} is not what the model was trained on: {changed}; name a file, which is read as "
        "then, or train it again",
    )
    return dict(zip(OWN_ROWS, (pair.target_test, pair.source_test, pair.source_validation), strict=True))


def open_own_rows(run: FinishedRun, which: str) -> RowStream:
    """Return labelled rows of the run's own data set: test rows of target or source, or source rows for validation."""
    held = _load_own_rows(run, which)
    rows = held[which]
    if rows is None or not len(rows.x):
        others = [name for name, each in held.items() if each is not None and len(each.x)]
        raise FedmmError(
            f"the run's data has no labelled rows {which!r}; use {', '.join([*others, 'or name labelled data'])}"
        )
    return RowStream.cut(ReadRows(rows.x, tuple(map(str, range(len(rows.x)))), rows.y))


def groups_in(run: FinishedRun, data: str, column: str) -> list[str]:
    """Return the group of each row: its value in a table's column or, without a table, the site that holds it."""
    if data not in OWN_ROWS:
        require(
            isinstance(run.input, TableInput) and run.input.fits(Path(data)),
            f"--group names a column of a table, and {data} is not a table",
        )
        assert isinstance(run.input, TableInput)
        frame = read_table(Path(data), run.input, [column])
        require_columns(frame, [column], data, "which --group names")
        return [word or "(empty)" for word in texts(frame[column])]
    given = run.experiment.data.of if isinstance(run.experiment.data, PerSite) else run.experiment.data
    which = OWN_ROWS.index(data)
    if isinstance(given, Table) and not (column == "site" and (given.site or given.files)):
        says = given.held_column(column)[which]
        require(
            says is not None, f"the rows {data!r} are not in {given.file or 'the files of the sites'}; name a table"
        )
        return [word or "(empty)" for word in says or ()]
    pair = given.load()
    held = None
    if pair.sites is not None:
        held = (pair.sites.target_test, pair.sites.source_test, pair.sites.source_validation)[which]
    require(
        held is not None and column == "site",
        f"of rows that are in no table, --group site tells who holds them, where the data says it; for {column!r} name "
        "a table",
    )
    assert held is not None
    assert pair.sites is not None
    return [pair.sites.names[place] if place >= 0 else OTHER_SITES for place in held.tolist()]


def predict_rows(run: FinishedRun, rows: ReadRows) -> Predicted:
    """Predict rows that were read."""
    logits = calibrated_logits(run.predictor.logits(rows.x).cpu().double(), run.temperature, run.bias)
    return Predicted(rows.names, logits.log_softmax(dim=1), rows.y, rows.strange, run.log_odds_threshold)


def calibrated_logits(logits: Tensor, temperature: float, bias: float) -> Tensor:
    """Divide logits ``[rows, classes]`` by the temperature, then add the bias to the second of two classes."""
    scaled = logits / temperature
    return scaled + scaled.new_tensor([0.0, bias]) if bias else scaled


def _input(run: FinishedRun, path: Path) -> Input:
    """Return how to read a path as rows: like the run's own data if that fits, else as arrays or as pictures."""
    try:
        require("\0" not in str(path) and path.exists(), f"there is no file or folder {path}")
        folder = path.is_dir()
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror}") from problem
    stored = run.predictor.show.stored
    if run.input is not None and run.input.fits(path):
        return run.input
    if path.suffix.lower() in ARRAYS:
        sample = run.sample_rows()
        whole = sample is not None and sample.dtype == torch.uint8
        return ArrayInput(run.class_names, stored, whole, by_number=True)
    pictures = len(stored) == 3 and stored[0] == 3 and stored[1] == stored[2]
    require(
        pictures and (folder or path.is_file()),
        f"the model of {run.folder} takes rows of shape {list(stored)}: give a .npy or .npz file of such rows, not "
        f"{path}",
    )
    return ImageInput(run.class_names, stored_size=stored[1])


# Predictions as a table -----------------------------------------------------------------------------------------------


Write = Callable[[Predicted], None]


def column_names(class_names: Sequence[str]) -> list[str]:
    """Return ``row``, ``predicted`` and ``p_<class>`` for each class."""
    return ["row", "predicted", *(f"p_{name}" for name in class_names)]


def require_ending(path: Path) -> None:
    """Refuse a name whose ending is not a known format."""
    known = path.name.lower().endswith(_CSV + _PARQUET)
    require(known, f"--out {path} must end in .csv, .csv.gz or .parquet; - is standard output")


def require_apart(run: FinishedRun, out: Path, *read: str) -> None:
    """Refuse to write predictions over rows that are read, or over a table of the run's own data set."""
    same = is_training_file(run, str(out)) or any(out.resolve() == Path(name).resolve() for name in read if name)
    require(not same, f"--out {out} is a file of rows, which predictions would replace; name another file")


def require_own_predictions(path: Path) -> None:
    """Refuse a name whose ending is unknown, and to replace a file that holds anything but predictions."""
    require_ending(path)
    require_replaceable(path, "--out", "predictions", _holds_predictions)


def _holds_predictions(path: Path) -> bool:
    names = _headings(path)
    return names[:2] == column_names([]) and all(name.startswith("p_") for name in names[2:])


def _headings(path: Path) -> list[str]:
    """Return the names of a table's columns; empty if it cannot be read as one."""
    name = path.name.lower()
    try:
        if name.endswith(_PARQUET):
            return [str(heading) for heading in _pyarrow()[1].read_schema(path).names]
        open_text: Callable[..., Any] = gzip.open if name.endswith(".gz") else open
        with open_text(path, "rt", encoding="utf-8", newline="") as stream:
            return next(csv.reader(stream), [])
    except FedmmError:
        raise
    except (gzip.BadGzipFile, EOFError, ValueError, csv.Error, zlib.error):
        return []


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415 - an optional dependency
        from pyarrow import parquet  # noqa: PLC0415 - an optional dependency
    except ImportError as problem:
        raise FedmmError("a .parquet file needs pyarrow: pip install 'fedmm[tables]'") from problem
    return pyarrow, parquet


@contextmanager
def prediction_file(path: Path, class_names: Sequence[str]) -> Iterator[Write]:
    """Open a file and yield a function that writes predictions to it; it gets its name once all are written."""
    require_ending(path)
    name = path.name.lower()
    with atomic_write(path) as partial:
        if name.endswith(_PARQUET):
            with _parquet(partial, class_names) as write:
                yield write
        else:
            open_text: Callable[..., Any] = gzip.open if name.endswith(".gz") else open
            with open_text(partial, "wt", encoding="utf-8", newline="") as stream:
                yield csv_stream(stream, class_names)


def csv_stream(stream: IO[str] | io.TextIOBase, class_names: Sequence[str]) -> Write:
    """Write the headings now, and return a function that writes predictions."""
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
    """Escape the bytes of file names that are not valid text."""
    return [word.encode("utf-8", "backslashreplace").decode("utf-8") for word in words]


@contextmanager
def _parquet(path: Path, class_names: Sequence[str]) -> Iterator[Write]:
    pyarrow, parquet = _pyarrow()
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
