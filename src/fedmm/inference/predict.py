"""What a run's model says of rows in files, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.data.class_folders import ClassFolders, found_in
from fedmm.data.domains import Input, Labelled, ReadRows
from fedmm.data.inputs import ArrayInput, ImageInput, TableInput
from fedmm.data.labels import numbered
from fedmm.data.readers.images import read_squares, refuse_bad
from fedmm.data.sources import StoredFile
from fedmm.inference.load_run import FinishedRun

_PICTURES_AT_ONCE, _ROWS_AT_ONCE = 256, 4096
_ARRAYS = (".npy", ".npz")
TEST = "test"
OWN_ROWS = (TEST, "source-test")
"""Words that name rows of the run's own data set."""


class Predicted(NamedTuple):
    """What the model says of some rows.

    names: of the rows. logarithms: of the probabilities, float64 ``[rows, classes]``. y: int64 ``[rows]``, -1 where the
    class is not known, -2 where the model does not know it; None where none is known. strange: labels that are no class
    of the model.
    """

    names: tuple[str, ...]
    logarithms: Tensor
    y: Tensor | None
    strange: tuple[str, ...] = ()

    @property
    def classes(self) -> Tensor:
        """The likeliest class of each row, int64 ``[rows]``."""
        return self.logarithms.argmax(dim=1)


@dataclass(frozen=True)
class Incoming:
    """Rows of a file, a folder or a data set: how many there are, and their parts in order.

    skipped: a sentence for each bad picture that was left out of the parts so far.
    """

    rows: int
    parts: Iterator[ReadRows]
    skipped: list[str] = field(default_factory=list)


def incoming(run: FinishedRun, path: Path, *, skip_bad: bool = False) -> Incoming:
    """The rows of a file or folder like the run's data; pictures are read when it is their turn.

    skip_bad: leave out files that cannot be read as pictures, as the run did if its data says so.
    """
    run.require_rows_of_files()
    given = _input(run, path)
    if isinstance(given, ImageInput):
        found = ClassFolders(path.parent, (StoredFile(path.name),)) if path.is_file() else found_in(path)
        skip, skipped = skip_bad or getattr(run.experiment.data, "skip_bad", False), list[str]()
        return Incoming(len(found.files), _pictures(given, found, skip, skipped), skipped)
    rows = given.read(path)
    return Incoming(len(rows.x), _cut(rows))


def read_as(
    run: FinishedRun, *, separator: str = "", decimal: str = "", encoding: str = "", site: str = ""
) -> FinishedRun:
    """The run for tables that are written in another way than its own were, or are of a site that they do not name."""
    given = {"separator": separator, "decimal": decimal, "encoding": encoding, "at": site}
    changed = {option: value for option, value in given.items() if value}
    if not changed:
        return run
    require(isinstance(run.input, TableInput), "--separator, --decimal, --encoding and --site are for models of tables")
    assert isinstance(run.input, TableInput)
    require(not site or bool(run.input.scales), "--site is for models of tables with scaling = 'per_site'")
    return replace(run, input=replace(run.input, **changed))  # type: ignore[arg-type]


def own_rows(run: FinishedRun, which: str) -> Incoming:
    """The test rows of the run's own data set: ``test`` of the target, ``source-test`` of the source."""
    pair = run.experiment.data.load()
    rows: Labelled | None = pair.target_test if which == TEST else pair.source_test
    if rows is None or not len(rows.x):
        other = "source-test, or name labelled data" if which == TEST else "test, or name labelled data"
        raise FedmmError(f"the run's data has no labelled rows {which!r}; use {other}")
    return Incoming(len(rows.x), _cut(ReadRows(rows.x, tuple(map(str, range(len(rows.x)))), rows.y)))


def predicted(run: FinishedRun, rows: ReadRows) -> Predicted:
    """What the model says of rows that were read."""
    logarithms = run.predictor.logits(rows.x).cpu().double().log_softmax(dim=1)
    return Predicted(rows.names, logarithms, rows.y, rows.strange)


def _input(run: FinishedRun, path: Path) -> Input:
    """How the path becomes rows: as the run's own data did; arrays, or pictures, for a built-in data set."""
    try:
        require("\0" not in str(path) and path.exists(), f"there is no file or folder {path}")
        folder, array = path.is_dir(), path.suffix.lower() in _ARRAYS
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror}") from problem
    stored = run.predictor.show.stored
    if run.input is not None and not (array and isinstance(run.input, ImageInput)):
        return run.input
    sample = run.sample_rows()
    if array:
        whole = sample is not None and sample.dtype == torch.uint8
        return ArrayInput(run.class_names, stored, whole, by_number=True)
    pictures = len(stored) == 3 and stored[0] == 3 and stored[1] == stored[2]
    require(
        pictures and (folder or path.is_file()),
        f"the model of {run.folder} takes rows of shape {list(stored)}: give a .npy or .npz file of such rows, not "
        f"{path}",
    )
    return ImageInput(run.class_names, stored_size=stored[1])


def _pictures(given: ImageInput, found: ClassFolders, skip_bad: bool, skipped: list[str]) -> Iterator[ReadRows]:
    labelled = bool(found.class_names)
    for start in range(0, len(found.files), _PICTURES_AT_ONCE):
        files = found.files[start : start + _PICTURES_AT_ONCE]
        squares = read_squares(found.folder, files, given.stored_size)
        skipped += squares.problems
        if not squares.read or (skipped and not skip_bad):  # read on all the same, to name all that are bad
            continue
        names = tuple(files[place].path for place in squares.read)
        y, strange = numbered((Path(name).parent.name for name in names), given.class_names)
        yield ReadRows(given.shown(squares.x), names, y if labelled else None, strange)
    if not skip_bad:
        refuse_bad(skipped, "; mend or remove what is bad, or leave it out with --skip-bad")
    require(len(skipped) < len(found.files), f"no picture in {found.folder} can be read: {(*skipped, '')[0]}")


def _cut(rows: ReadRows) -> Iterator[ReadRows]:
    for start in range(0, len(rows.x), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        y = None if rows.y is None else rows.y[part]
        yield ReadRows(rows.x[part], rows.names[part], y, rows.strange)
