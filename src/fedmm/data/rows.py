"""A client's rows of one domain, read from arrays, tensors, data sets, dicts or lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fedmm.core.errors import FedmmError, first_line, require
from fedmm.data.labels import name_type, read_label, read_labels

Device = torch.device | str
Keys = tuple[str, str]
"""The keys of the input and the label in a row that is a dict."""

INPUT_KEYS = ("x", "input", "inputs", "image", "img", "pixel_values", "features", "data")
LABEL_KEYS = ("y", "label", "labels", "fine_label", "target", "class")

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST_ROWS_READ = 1_000_000
_DTYPES = (*_FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


class Rows(Protocol):
    """Rows of one domain, in their original dtype."""

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> Tensor:
        """Return the rows at these indices: int64 ``[k]`` to ``[k, ...]``."""

    def labels(self, index: Tensor) -> Tensor:
        """Return the labels at these indices, int64 ``[k]``; raise FedmmError if the rows have none."""

    def to(self, device: Device) -> Rows:
        """Return the same rows, served on another device."""


@dataclass(frozen=True, eq=False)
class TensorRows:
    """Rows in memory: x ``[rows, ...]``, y int64 ``[rows]`` or None; copied only if necessary.

    index: int64 ``[k]``, the rows of x that belong; all by default. It lets clients share one tensor.
    """

    x: Tensor
    y: Tensor | None = None
    what: str = "rows"
    index: Tensor | None = None

    @property
    def labelled(self) -> bool:
        return self.y is not None

    def __len__(self) -> int:
        return len(self.x if self.index is None else self.index)

    def take(self, index: Tensor) -> Tensor:
        return self.x[self._chosen(index)]

    def labels(self, index: Tensor) -> Tensor:
        if self.y is None:
            raise _no_labels(self.what)
        return self.y[self._chosen(index)]

    def _chosen(self, index: Tensor) -> Tensor:
        chosen = index if self.index is None else self.index[index.to(self.index.device)]
        return chosen.to(self.x.device)

    def to(self, device: Device) -> TensorRows:
        y, index = (None if tensor is None else tensor.to(device) for tensor in (self.y, self.index))
        return TensorRows(self.x.to(device), y, self.what, index)


@dataclass(frozen=True, eq=False)
class DatasetRows:
    """Rows of a map-style dataset, read on demand; item i is x, a pair (x, y), or a dict of both.

    Values are checked as they are read. Each label is read once and cached, also when ``take`` reads its row.
    keys: of rows that are dicts; by default one of the usual keys. classes: class names in order, if labels are words.
    """

    dataset: Any
    labelled: bool
    what: str = "rows"
    device: Device = "cpu"
    keys: Keys | None = None
    classes: tuple[str, ...] = ()
    _known: dict[int, int] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, index: Tensor) -> Tensor:
        if len(index) == 0:
            return self._read(0).unsqueeze(0)[:0].to(self.device)
        numbers = index.tolist()
        rows = [self._read(number) for number in numbers]
        for number, row in zip(numbers, rows, strict=True):
            require(
                row.shape == rows[0].shape and row.dtype == rows[0].dtype,
                f"{self.what}: row {number} is {row.dtype} of shape {tuple(row.shape)}, row {numbers[0]} is "
                f"{rows[0].dtype} of shape {tuple(rows[0].shape)}; give all rows one dtype and shape",
            )
        return torch.stack(rows).to(self.device)

    def labels(self, index: Tensor) -> Tensor:
        if not self.labelled:
            raise _no_labels(self.what)
        numbers = index.tolist()
        for number in numbers:
            if number not in self._known:
                self._read(number)
        return torch.tensor([self._known[number] for number in numbers], dtype=torch.int64, device=self.device)

    def to(self, device: Device) -> DatasetRows:
        return replace(self, device=device)

    def label(self, number: int) -> Any:
        """Return one row's label as the dataset gives it."""
        return self._item(number)[1]

    def _item(self, number: int) -> tuple[Any, Any]:
        """Return one row's (x, y) as the dataset gives them; y is None if the rows are unlabelled."""
        what = f"{self.what}, row {number}"
        try:
            item = self.dataset[number]
        except FedmmError:
            raise
        except Exception as problem:
            raise FedmmError(f"{what} of the dataset could not be read: {first_line(problem)}") from problem
        if isinstance(item, Mapping):
            return split_dict(item, what, self.labelled, self.keys)
        if self.labelled:
            pair = isinstance(item, tuple | list) and len(item) == 2
            require(pair, f"{what} of the dataset must be a pair (x, label), or a dict of both")
            return item[0], item[1]
        if isinstance(item, tuple) or (isinstance(item, list) and not _is_number(item[0] if item else None)):
            require(len(item) > 0, f"{what} of the dataset is empty; give x or (x, label)")
            return item[0], None
        return item, None

    def _read(self, number: int) -> Tensor:
        """Return one item's x, and cache its label if the rows are labelled."""
        what = f"{self.what}, row {number}"
        x, label = self._item(number)
        if self.labelled:
            self._known[number] = read_label(label, what, self.classes)
        row = _tensor(x, what, "let the dataset's transform make it a numpy array or a torch tensor")
        _require_finite(row.unsqueeze(0), what)
        return row


def as_rows(
    data: object, what: str, labelled: bool, keys: Keys | None = None, classes: Sequence[str] = ()
) -> TensorRows | DatasetRows:
    """Convert ``data`` to rows: x alone, a pair (x, y) if ``labelled``, or a map-style dataset of either.

    x and y are numpy arrays, torch tensors or lists; x may be a list of PIL pictures. A dataset is anything with a
    length whose items are x, (x, y) or a dict of both. x keeps its dtype; labels become int64 whole numbers of 0 or
    more.
    what: the data's name in messages, such as ``client 'site-a': source``. labelled: if false, labels in a dataset's
    items are dropped. keys, classes: as in :class:`DatasetRows`.
    """
    if isinstance(data, TensorRows | DatasetRows):
        require(data.labelled or not labelled, f"{what} has no labels; give rows that have them")
        return data
    if isinstance(data, IterableDataset):
        raise FedmmError(
            f"{what} is an IterableDataset, whose rows have no numbers; give a map-style Dataset, or a DataLoader of it"
        )
    data = in_memory(data, what, labelled, keys)
    if type(data) is TensorDataset:
        tensors = data.tensors
        require(
            len(tensors) == 2 or (len(tensors) > 0 and not labelled),
            f"{what} is a TensorDataset of {len(tensors)} tensors; give {'x and labels' if labelled else 'x'}",
        )
        data = (tensors[0], tensors[1]) if labelled else tensors[0]
    if is_dataset(data):
        return _dataset_rows(data, what, labelled, keys, tuple(classes))
    if not labelled:
        require(
            not isinstance(data, tuple),
            f"{what} is a tuple; give x alone, as one numpy array or torch tensor, without labels",
        )
        return _read_unlabelled(data, what)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise FedmmError(
            f"{what} must be a pair (x, labels) of numpy arrays or torch tensors, or a map-style Dataset of such "
            f"pairs, not {name_type(data)}"
        )
    return _read_labelled(data[0], data[1], what, classes)


def is_dataset(data: object) -> bool:
    """Return whether ``data`` is indexable by row, each row x, (x, y) or a dict of both."""
    if isinstance(data, Dataset):
        return True
    if isinstance(data, list):
        return bool(data) and (isinstance(data[0], Mapping) or (isinstance(data[0], tuple) and len(data) != 2))
    plain = isinstance(data, tuple | Mapping | str | bytes | Tensor | np.ndarray) or hasattr(data, "__array__")
    return isinstance(data, Sized) and hasattr(data, "__getitem__") and not plain


def in_memory(data: object, what: str, labelled: bool, keys: Keys | None = None) -> object:
    """Turn a dict of arrays or a DataLoader, read through once, into (x, y) or x; return other data as they are."""
    if isinstance(data, Mapping):
        x, y = split_dict(data, what, labelled, keys)
        return (x, y) if labelled else x
    if not isinstance(data, DataLoader):
        return data
    xs: list[Tensor] = []
    ys: list[Any] = []
    rows, endless = 0, not has_length(data)
    for batch in data:
        x, y = _split_batch(batch, what, labelled, keys)
        xs.append(_tensor(x, what, "let it give batches of tensors"))
        require(xs[-1].ndim > 0, f"{what} is a DataLoader without batches; let it give batches of rows")
        ys += y.tolist() if isinstance(y, Tensor | np.ndarray) else list(y) if isinstance(y, list | tuple) else [y]
        rows += len(xs[-1])
        require(
            not endless or rows <= _MOST_ROWS_READ,
            f"{what} is a DataLoader without an end within {_MOST_ROWS_READ:,} rows; give one that ends, or a Dataset",
        )
    require(rows > 0, f"{what} has no rows; leave out a domain the client does not hold")
    for x in xs:
        require(
            x.shape[1:] == xs[0].shape[1:],
            f"{what} gives batches of rows of shape {tuple(xs[0].shape[1:])} and {tuple(x.shape[1:])}; they must agree",
        )
    return (torch.cat(xs), ys) if labelled else torch.cat(xs)


def split_dict(item: Mapping[Any, Any], what: str, labelled: bool, keys: Keys | None) -> tuple[Any, Any]:
    """Return the input and the label in a dict of one or more rows; the label is None if ``labelled`` is false."""
    return (
        item[_key(item, what, "input", INPUT_KEYS, keys and keys[0])],
        item[_key(item, what, "label", LABEL_KEYS, keys and keys[1])] if labelled else None,
    )


def _key(item: Mapping[Any, Any], what: str, part: str, usual: Sequence[str], given: str | None) -> str:
    has = ", ".join(map(str, item))
    if given is not None:
        require(given in item, f"{what} is a dict without {given!r}, the key of the {part} (it has {has})")
        return given
    found = [key for key in usual if key in item]
    require(
        len(found) == 1,
        f"{what} is a dict with {'several keys' if found else 'no key'} for the {part}; name those of input and label "
        f"with keys=, for example keys=('image', 'label') (it has {has})",
    )
    return found[0]


def _split_batch(batch: Any, what: str, labelled: bool, keys: Keys | None) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        return split_dict(batch, what, labelled, keys)
    if not labelled:
        return (batch[0] if isinstance(batch, tuple | list) and len(batch) > 0 else batch), ()
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    require(pair, f"{what} is a DataLoader; let it give pairs (x, labels), or dicts of both")
    return batch[0], batch[1]


def has_length(data: Any) -> bool:
    """Return whether ``len(data)`` works."""
    try:
        return len(data) >= 0
    except TypeError:
        return False


def _read_unlabelled(x: object, what: str) -> TensorRows:
    rows = _tensor(x, what, "give a numpy array, a torch tensor or a map-style Dataset")
    require(rows.ndim > 0 and len(rows) > 0, f"{what} has no rows; leave out a domain the client does not hold")
    _require_finite(rows, what)
    return TensorRows(rows, None, what)


def _read_labelled(x: object, y: object, what: str, classes: Sequence[str]) -> TensorRows:
    rows, labels = _read_unlabelled(x, what), read_labels(y, what, classes)
    require(
        len(labels) == len(rows),
        f"{what} has {len(rows)} rows but {len(labels)} labels; give one label for each row",
    )
    return TensorRows(rows.x, labels.to(rows.x.device), what)


def _dataset_rows(data: object, what: str, labelled: bool, keys: Keys | None, classes: tuple[str, ...]) -> DatasetRows:
    sparse = hasattr(data, "toarray")
    require(not sparse, f"{what} is a sparse {type(data).__name__}; give a dense array, for example its toarray()")
    require(has_length(data), f"{what} is a Dataset without a length; give one with __len__ and __getitem__")
    rows = DatasetRows(data, labelled, what, keys=keys, classes=classes)
    require(len(rows) > 0, f"{what} has no rows; leave out a domain the client does not hold")
    rows.take(torch.tensor([0]))
    return rows


def _tensor(x: object, what: str, advice: str) -> Tensor:
    """Convert x to a tensor of a dtype that training supports, sharing memory if possible."""
    if isinstance(x, Image.Image):
        x = _picture(x, what)
    elif isinstance(x, list | tuple):
        x = _from_list(x, what, advice)
    elif not isinstance(x, Tensor | np.ndarray | np.generic) and hasattr(x, "__array__"):
        x = np.asarray(x)
    if isinstance(x, np.ndarray | np.generic):
        require(not isinstance(x, np.ma.MaskedArray), f"{what} is a masked array; fill its masked values first")
        array = np.asarray(x)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        # from_numpy warns about read-only memory and does not support negative strides.
        shareable = native.flags.writeable and all(stride >= 0 for stride in native.strides)
        try:
            x = torch.from_numpy(native if shareable else native.copy())
        except TypeError:
            raise FedmmError(f"{what} holds numpy {array.dtype} values; convert them to float32 or uint8") from None
    if not isinstance(x, Tensor):
        raise FedmmError(f"{what} is {name_type(x)}; {advice}")
    require(x.layout == torch.strided, f"{what} is a sparse tensor; give a dense one")
    require(x.dtype in _DTYPES, f"{what} holds {x.dtype} values; convert them to float32 or uint8")
    return x.detach()


def _picture(image: Image.Image, what: str) -> np.ndarray[Any, Any]:
    """Convert a picture to bytes ``[channels, height, width]``: one channel if it is grey, otherwise three."""
    require(
        image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"),
        f"{what} is a picture of mode {image.mode}; convert it to L or RGB",
    )
    grey = image.mode in ("1", "L", "LA")
    pixels = np.array(image.convert("L" if grey else "RGB"))
    return pixels[None] if grey else pixels.transpose(2, 0, 1).copy()


def _from_list(values: Sequence[Any], what: str, advice: str) -> Tensor | np.ndarray[Any, Any]:
    """Combine nested numbers, or a list of arrays, tensors or pictures of one shape, into one array or tensor."""
    try:
        if values and isinstance(values[0], Tensor | Image.Image):
            return torch.stack([_tensor(value, what, advice) for value in values])
        return np.asarray(values)
    except FedmmError:
        raise
    except (ValueError, TypeError, RuntimeError) as problem:
        raise FedmmError(f"{what} is {name_type(values)} whose rows are not all of one shape; {advice}") from problem


def _require_finite(x: Tensor, what: str) -> None:
    """Refuse NaN and infinity in rows ``[rows, ...]``."""
    if x.dtype not in _FLOATS or bool(torch.isfinite(x).all()):
        return
    bad = (~torch.isfinite(x)).reshape(len(x), -1).any(dim=1).nonzero()
    where = f" in row {int(bad[0])}" if len(x) > 1 else ""
    raise FedmmError(f"{what} has a value that is NaN or infinite{where}; remove or fill such values first")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


def _no_labels(what: str) -> FedmmError:
    return FedmmError(f"{what} has no labels; only rows given as (x, labels) have them")
