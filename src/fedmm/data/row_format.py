"""The common format of a federation's rows: data frame columns, class names, and keys of dicts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.data.columns import Column
from fedmm.data.labels import list_words, sort_names
from fedmm.data.readers.table_formats import MISSING
from fedmm.data.readers.tables import is_numeric, is_plain, numbers, texts
from fedmm.data.rows import DatasetRows, Keys, TensorRows, as_rows, has_length, in_memory, is_dataset

if TYPE_CHECKING:
    import pandas

_MOST_LEVELS = 100


class Part(NamedTuple):
    """One client's data of one domain; what: its name in messages."""

    data: Any
    what: str
    labelled: bool


@dataclass(frozen=True)
class RowFormat:
    """How users' data becomes rows of numbers, in the same way for all clients, validation and prediction.

    columns: of data frames, in encoding order. Columns of words are one-hot: a number for each word that a client has,
    and one more for any other; numeric columns stay as they are.
    classes: class names in label order, if labels are words.
    keys: of rows that are dicts, if not the usual ones.
    """

    columns: tuple[Column, ...] = ()
    classes: tuple[str, ...] = ()
    keys: Keys | None = None

    def rows(self, data: Any, what: str, labelled: bool) -> TensorRows | DatasetRows:
        """Convert ``data`` to rows as :func:`fedmm.data.rows.as_rows` does; x may also be a data frame."""
        if isinstance(data, tuple | list) and len(data) == 2 and labelled and is_frame(data[0]):
            data = (self._encode(data[0], what), data[1])
        elif is_frame(data) and not labelled:
            data = self._encode(data, what)
        return as_rows(data, what, labelled, self.keys, self.classes)

    def _encode(self, frame: pandas.DataFrame, what: str) -> Tensor:
        """Encode a frame's columns, matched by name, as float32 ``[rows, numbers]``."""
        require(bool(self.columns), f"{what} is a DataFrame, but the clients' rows are not; give an array")
        _require_columns(frame, [column.name for column in self.columns], what)
        parts = []
        for column in self.columns:
            values, about = frame[column.name], f"{what}, column {column.name!r}"
            if not column.levels:
                missing = np.flatnonzero(np.isnan(numbers(values, about)))
                where = int(missing[0]) if len(missing) else 0
                require(not len(missing), f"{about} holds no number in row {where}; remove or fill such values first")
            parts.append(column.encode(values, about))
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def require_classes(self, count: int) -> None:
        """Raise FedmmError if the network's number of classes differs from the number of class names."""
        names = self.classes
        require(
            len(names) in (0, count),
            f"the clients' labels have {len(names)} classes ({', '.join(names[:10])}), but the network has {count}; "
            f"make it with classes={len(names)}",
        )

    def table(self) -> dict[str, Any]:
        """Return the format as stored in a model file; empty for arrays with numbered classes."""
        table: dict[str, Any] = {}
        if self.columns:
            table["columns"] = [{"name": column.name, "levels": list(column.levels)} for column in self.columns]
        if self.classes:
            table["class_names"] = list(self.classes)
        return table if self.keys is None else {**table, "keys": list(self.keys)}

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> RowFormat:
        """Rebuild the format from :meth:`table`."""
        columns = tuple(Column(column["name"], levels=tuple(column["levels"])) for column in table.get("columns", ()))
        classes, keys = tuple(table.get("class_names", ())), tuple(table.get("keys", ()))
        require(all(isinstance(name, str) for name in (*classes, *keys)), "its classes and keys must be words")
        return RowFormat(columns, classes, as_keys(keys) if keys else None)


def as_keys(keys: Any) -> Keys:
    """Check and return the keys of input and label."""
    pair = isinstance(keys, tuple | list) and len(keys) == 2 and all(isinstance(key, str) for key in keys)
    require(pair, f"keys must be two words, those of input and label, such as ('image', 'label'), not {keys!r:.60}")
    return keys[0], keys[1]


def is_frame(data: object) -> bool:
    """Return whether ``data`` is a pandas data frame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, getattr(pandas, "DataFrame", ()))


def learn_format(parts: Sequence[Part], keys: Any = None) -> tuple[RowFormat, list[Part]]:
    """Learn the clients' common format; return it with their data, dicts of arrays and DataLoaders read into memory.

    It could be learnt from clients that keep their rows: it needs only column names and the sets of words and labels.
    """
    keys = None if keys is None else as_keys(keys)
    parts = [part._replace(data=in_memory(part.data, part.what, part.labelled, keys)) for part in parts]
    frames = [(x, part.what) for part in parts if is_frame(x := _inputs(part))]
    if frames:
        strange = next((part.what for part in parts if not is_frame(_inputs(part))), None)
        require(
            strange is None, f"{frames[0][1]} is a DataFrame, {strange} is not; give all clients data frames or none"
        )
    return RowFormat(_columns(frames), _classes(parts, keys), keys), parts


def _inputs(part: Part) -> Any:
    pair = part.labelled and isinstance(part.data, tuple | list) and len(part.data) == 2
    return part.data[0] if pair else part.data


def _columns(frames: Sequence[tuple[pandas.DataFrame, str]]) -> tuple[Column, ...]:
    """Return how the columns of all clients' frames become numbers, in the order of the first frame."""
    if not frames:
        return ()
    first, told = frames[0]
    names = list(first.columns)
    require(bool(names), f"{told} has no columns; give at least one")
    for name in names:
        require(
            isinstance(name, str), f"{told} has a column called {name!r:.40}; give its columns names that are words"
        )
    known = set(names)
    _require_columns(first, names, told)
    for frame, what in frames[1:]:
        _require_columns(frame, names, what)
        more = [str(name) for name in frame.columns if name not in known]
        require(not more, f"{what} has a column {more[0] if more else ''!r} that {told} lacks; they must agree")
    return tuple(_column(name, [(frame[name], f"{what}, column {name!r}") for frame, what in frames]) for name in names)


def _column(name: str, held: Sequence[tuple[pandas.Series, str]]) -> Column:
    for column, about in held:
        require(is_plain(column), f"{about} holds dates, times or lists; turn them into numbers or words, or drop it")
    if all(column.dtype.name != "category" and is_numeric(column) for column, _ in held):
        return Column(name)
    levels = sort_names(text for column, _ in held for text in texts(column) if text not in MISSING)
    require(bool(levels), f"{held[0][1]} is empty in every row; drop it")
    require(
        len(levels) <= _MOST_LEVELS,
        f"{held[0][1]} holds {len(levels)} different words at all clients, more than {_MOST_LEVELS}; drop it, or turn "
        "it into numbers",
    )
    return Column(name, levels=levels)


def _require_columns(frame: pandas.DataFrame, names: Sequence[str], what: str) -> None:
    missing = [name for name in names if name not in frame.columns]
    more = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
    require(
        not missing, f"{what} lacks the column{'s' * (len(missing) > 1)} {more}; give it those of the other clients"
    )
    twice = [name for name in frame.columns[frame.columns.duplicated()] if name in set(names)]
    require(not twice, f"{what} has two columns {twice[0] if twice else ''!r}; give each column its own name")


def _classes(parts: Sequence[Part], keys: Keys | None) -> tuple[str, ...]:
    """Return the clients' word labels in order; empty if labels are numbers."""
    found = [(labels, part.what) for part in parts if part.labelled and (labels := _words(part, keys)) is not None]
    if not found:
        return ()
    named = [what for _, what in found]
    numbered = next((part.what for part in parts if part.labelled and part.what not in named), None)
    require(
        numbered is None,
        f"{found[0][1]} has words as labels, but {numbered} does not; use one kind of labels for all clients",
    )
    return sort_names(str(label) for labels, _ in found for label in labels if isinstance(label, str) and label)


def _words(part: Part, keys: Keys | None) -> list[Any] | None:
    data = part.data
    if isinstance(data, TensorRows | DatasetRows):
        return None
    if isinstance(data, tuple | list) and len(data) == 2 and not is_dataset(data):
        return list_words(data[1])
    if not is_dataset(data) or not has_length(data) or not len(data):
        return None
    rows = DatasetRows(data, True, part.what, keys=keys)
    return [rows.label(number) for number in range(len(rows))] if isinstance(rows.label(0), str) else None
