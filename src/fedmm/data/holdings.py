"""The rows a client holds of one domain, from whatever form the user has them in."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedmm.core.errors import FedmmError, require

Device = torch.device | str

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DTYPES = (*_FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


class Rows(Protocol):
    """Rows of one domain, in the dtype they were given in."""

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> Tensor:
        """The rows with these numbers: int64 ``[k]`` to ``[k, ...]``."""

    def labels(self, index: Tensor) -> Tensor:
        """Their labels, int64 ``[k]``; refused for rows without labels."""

    def to(self, device: Device) -> Rows:
        """The same rows, given out on another device."""


@dataclass(frozen=True, eq=False)
class TensorRows:
    """Rows in memory: x ``[rows, ...]``, y int64 ``[rows]`` or None; not copied unless it has to be.

    index: int64 ``[k]``, which of them are meant; all by default. Clients that share a tensor hold a part of it each.
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
        y, index = (None if each is None else each.to(device) for each in (self.y, self.index))
        return TensorRows(self.x.to(device), y, self.what, index)


@dataclass(frozen=True, eq=False)
class DatasetRows:
    """Rows of a map-style dataset, read when they are asked for; item i is x, or (x, y).

    Values are checked as they are read. A label is read once and remembered, also where ``take`` comes across it.
    """

    dataset: Dataset[Any]
    labelled: bool
    what: str = "rows"
    device: Device = "cpu"
    _known: dict[int, int] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        assert isinstance(self.dataset, Sized)
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
        return DatasetRows(self.dataset, self.labelled, self.what, device, self._known)

    def _read(self, number: int) -> Tensor:
        """The x of one item; the label, if there is to be one, goes to what is known."""
        what = f"{self.what}, row {number}"
        item = self.dataset[number]
        x = item
        if self.labelled:
            require(
                isinstance(item, tuple | list) and len(item) == 2, f"{what} of the dataset must be a pair (x, label)"
            )
            x = item[0]
            self._known[number] = _label(item[1], what)
        elif isinstance(item, tuple | list):
            require(len(item) > 0, f"{what} of the dataset is empty; give x or (x, label)")
            x = item[0]
        row = _tensor(x, what, "let the dataset's transform make it a numpy array or a torch tensor")
        _require_finite(row.unsqueeze(0), what)
        return row


def as_rows(data: object, what: str, labelled: bool) -> TensorRows | DatasetRows:
    """The rows in ``data``: an array or tensor x, a pair (x, y) where labelled, or a map-style dataset of either.

    what: the data's name in messages, such as ``client 'site-a': source``. Labels in the items of a dataset are dropped
    where ``labelled`` is false. x keeps its dtype, labels become int64 whole numbers of 0 or more.
    """
    if isinstance(data, TensorRows | DatasetRows):
        require(data.labelled or not labelled, f"{what} has no labels; give rows that have them")
        return data
    if isinstance(data, IterableDataset):
        raise FedmmError(f"{what} is an IterableDataset, whose rows have no numbers; give a map-style Dataset")
    if type(data) is TensorDataset:
        tensors = data.tensors
        require(
            len(tensors) == 2 or (len(tensors) > 0 and not labelled),
            f"{what} is a TensorDataset of {len(tensors)} tensors; give {'x and labels' if labelled else 'x'}",
        )
        return _labelled(tensors[0], tensors[1], what) if labelled else _unlabelled(tensors[0], what)
    if isinstance(data, Dataset):
        return _dataset_rows(data, what, labelled)
    if not labelled:
        require(
            not isinstance(data, tuple | list),
            f"{what} is a {type(data).__name__}; give x alone, as one numpy array or torch tensor, without labels",
        )
        return _unlabelled(data, what)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise FedmmError(
            f"{what} must be a pair (x, labels) of numpy arrays or torch tensors, or a map-style Dataset of such "
            f"pairs, not {_kind(data)}"
        )
    return _labelled(data[0], data[1], what)


def _unlabelled(x: object, what: str) -> TensorRows:
    rows = _tensor(x, what, "give a numpy array, a torch tensor or a map-style Dataset")
    require(rows.ndim > 0 and len(rows) > 0, f"{what} has no rows; leave out a domain the client does not hold")
    _require_finite(rows, what)
    return TensorRows(rows, None, what)


def _labelled(x: object, y: object, what: str) -> TensorRows:
    rows, labels = _unlabelled(x, what), _labels(y, what)
    require(
        len(labels) == len(rows),
        f"{what} has {len(rows)} rows but {len(labels)} labels; give one label for each row",
    )
    return TensorRows(rows.x, labels.to(rows.x.device), what)


def _dataset_rows(data: Dataset[Any], what: str, labelled: bool) -> DatasetRows:
    require(isinstance(data, Sized), f"{what} is a Dataset without a length; give one with __len__ and __getitem__")
    rows = DatasetRows(data, labelled, what)
    require(len(rows) > 0, f"{what} has no rows; leave out a domain the client does not hold")
    rows.take(torch.tensor([0]))
    return rows


def _tensor(x: object, what: str, advice: str) -> Tensor:
    """x as a tensor of a dtype that training can use, sharing memory where it can."""
    if isinstance(x, np.ndarray | np.generic):
        require(not isinstance(x, np.ma.MaskedArray), f"{what} is a masked array; fill its masked values first")
        array = np.asarray(x)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        # from_numpy warns of memory that must not be written to, and knows no negative strides.
        shareable = native.flags.writeable and all(stride >= 0 for stride in native.strides)
        try:
            x = torch.from_numpy(native if shareable else native.copy())
        except TypeError:
            raise FedmmError(f"{what} holds numpy {array.dtype} values; convert them to float32 or uint8") from None
    if not isinstance(x, Tensor):
        raise FedmmError(f"{what} is {_kind(x)}; {advice}")
    require(x.layout == torch.strided, f"{what} is a sparse tensor; give a dense one")
    require(x.dtype in _DTYPES, f"{what} holds {x.dtype} values; convert them to float32 or uint8")
    return x.detach()


def _require_finite(x: Tensor, what: str) -> None:
    """Refuse NaN and infinity in rows ``[rows, ...]``."""
    if x.dtype not in _FLOATS or bool(torch.isfinite(x).all()):
        return
    bad = (~torch.isfinite(x)).reshape(len(x), -1).any(dim=1).nonzero()
    where = f" in row {int(bad[0])}" if len(x) > 1 else ""
    raise FedmmError(f"{what} has a value that is NaN or infinite{where}; remove or fill such values first")


def _labels(y: object, what: str) -> Tensor:
    """y as int64 ``[rows]``."""
    if isinstance(y, np.ndarray):
        require(y.dtype.kind in "biuf", f"{what} has labels of numpy type {y.dtype}; number the classes from 0")
        y = torch.from_numpy(y.astype(np.float64 if y.dtype.kind == "f" else np.int64))
    if not isinstance(y, Tensor):
        raise FedmmError(f"{what} has labels that are {_kind(y)}; give a numpy array or a torch tensor")
    require(not y.is_complex(), f"{what} has complex labels; number the classes from 0")
    require(
        y.ndim == 1, f"{what} has labels of shape {tuple(y.shape)}; give one whole number for each row, shape [rows]"
    )
    values = y.detach().to(torch.float64 if y.is_floating_point() else torch.int64)
    wrong = (values < 0) | (values != values.round())
    if values.is_floating_point():  # a cast of what int64 cannot hold is undefined
        wrong |= ~(values < 2.0**63)
    bad = wrong.nonzero()
    if len(bad) > 0:
        raise _bad_label(values[bad[0, 0]].item(), f"{what}, row {int(bad[0])}")
    return values.to(torch.int64)


def _label(value: object, what: str) -> int:
    """One label, from a number or an array or tensor with one element."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.item() if value.size == 1 else value
    elif isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else value
    if not isinstance(value, int | float) or not 0 <= value < 2**63 or not float(value).is_integer():
        raise _bad_label(value, what)
    return int(value)


def _bad_label(value: object, what: str) -> FedmmError:
    return FedmmError(f"{what} has label {value!r:.40}; labels must be whole numbers of 0 or more, below 2**63")


def _no_labels(what: str) -> FedmmError:
    return FedmmError(f"{what} has no labels; only rows given as (x, labels) have them")


def _kind(value: object) -> str:
    """What a value is, for a message."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__name__}"
