from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fedmm.core.errors import FedmmError
from fedmm.data.rows import DatasetRows, Rows, TensorRows, as_rows

WHAT = "client 'site-a': source"


class Items(Dataset[Any]):
    """A map-style dataset of any items, which counts what is read."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.items[index]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


class Lengthless(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2)


X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
INDEX = torch.tensor([4, 0, 4])

LABELLED: dict[str, Any] = {
    "arrays": (X, Y),
    "tensors": (torch.from_numpy(X), torch.from_numpy(Y)),
    "list of both": [X, Y],
    "mixed, whole floats": (X, torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0, 2.0])),
    "small labels": (X, Y.astype(np.uint16)),
    "tensor dataset": TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "subset": Subset(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), range(6)),
    "items of arrays": Items([(x, y) for x, y in zip(X, Y, strict=True)]),
    "items of tensors": Items([[torch.from_numpy(x), torch.tensor(int(y))] for x, y in zip(X, Y, strict=True)]),
}
UNLABELLED: dict[str, Any] = {
    "array": X,
    "tensor": torch.from_numpy(X),
    "tensor dataset": TensorDataset(torch.from_numpy(X)),
    "tensor dataset with labels": TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "items": Items(list(X)),
    "items with labels": Items([(x, "a word that is dropped") for x in X]),
    "items of one": Items([(x,) for x in X]),
}


@pytest.mark.parametrize("form", LABELLED)
def test_labelled_forms(form: str) -> None:
    rows: Rows = as_rows(LABELLED[form], WHAT, labelled=True)
    assert len(rows) == 6
    assert rows.labelled
    taken, labels = rows.take(INDEX), rows.labels(INDEX)
    assert torch.equal(taken, torch.from_numpy(X)[INDEX])
    assert taken.dtype == torch.float64
    assert labels.tolist() == [1, 0, 1]
    assert labels.dtype == torch.int64
    assert rows.take(INDEX[:0]).shape == (0, 2)
    assert rows.labels(INDEX[:0]).shape == (0,)


@pytest.mark.parametrize("form", UNLABELLED)
def test_unlabelled_forms(form: str) -> None:
    rows: Rows = as_rows(UNLABELLED[form], "target", labelled=False)
    assert len(rows) == 6
    assert not rows.labelled
    assert torch.equal(rows.take(INDEX), torch.from_numpy(X)[INDEX])
    with pytest.raises(FedmmError, match="target has no labels"):
        rows.labels(INDEX)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32, np.float64, np.bool_])
def test_the_dtype_stays(dtype: Any) -> None:
    x = (X > 3).astype(dtype)
    assert as_rows(x, WHAT, labelled=False).take(INDEX).dtype == torch.from_numpy(x).dtype
    assert as_rows(Items(list(x)), WHAT, labelled=False).take(INDEX).dtype == torch.from_numpy(x).dtype


def test_arrays_are_shared_where_they_can_be() -> None:
    x = X.copy()
    rows = as_rows(x, WHAT, labelled=False)
    assert isinstance(rows, TensorRows)
    assert rows.x.data_ptr() == x.ctypes.data


def read_only() -> np.ndarray[Any, Any]:
    x = X.copy()
    x.setflags(write=False)
    return x


@pytest.mark.parametrize(
    "x", [X[::-1], X.astype(">f8"), np.asfortranarray(X), np.broadcast_to(X[0], (3, 2)), read_only()]
)
def test_unusual_arrays(x: Any) -> None:
    rows = as_rows(x, WHAT, labelled=False)
    assert rows.take(torch.arange(len(rows))).tolist() == x.tolist()


def test_gradients_are_left_behind() -> None:
    rows = as_rows(torch.ones(2, 2, requires_grad=True), WHAT, labelled=False)
    assert not rows.take(torch.tensor([0])).requires_grad


def test_a_dataset_is_read_lazily_and_labels_once() -> None:
    items = Items([(x, y) for x, y in zip(X, Y, strict=True)])
    rows = as_rows(items, WHAT, labelled=True)
    assert isinstance(rows, DatasetRows)
    assert items.read == [0]
    rows.take(torch.tensor([3, 5]))
    rows.labels(torch.tensor([3, 5, 0, 3]))
    assert items.read == [0, 3, 5]
    rows.labels(torch.tensor([2, 2]))
    assert items.read == [0, 3, 5, 2]


@pytest.mark.parametrize("data", [(X, Y), Items([(x, y) for x, y in zip(X, Y, strict=True)])])
def test_moving_to_a_device(data: Any) -> None:
    rows = as_rows(data, WHAT, labelled=True).to("meta")
    assert rows.take(torch.tensor([1])).device.type == "meta"
    assert rows.labels(torch.tensor([1])).device.type == "meta"
    assert len(rows) == 6


def with_value(value: float) -> np.ndarray[Any, Any]:
    x = X.copy()
    x[3, 1] = value
    return x


class Picture:
    """Stands for a PIL image."""


@pytest.mark.parametrize(
    ("data", "labelled", "message"),
    [
        ((X, Y[:5]), True, f"{WHAT} has 6 rows but 5 labels"),
        ((X[:0], Y[:0]), True, f"{WHAT} has no rows"),
        (torch.zeros(0, 3), False, f"{WHAT} has no rows"),
        (torch.tensor(1.0), False, f"{WHAT} has no rows"),
        (Items([]), False, f"{WHAT} has no rows"),
        (TensorDataset(torch.zeros(0, 2)), False, f"{WHAT} has no rows"),
        (with_value(np.nan), False, f"{WHAT} has a value that is NaN or infinite in row 3"),
        ((with_value(-np.inf), Y), True, f"{WHAT} has a value that is NaN or infinite in row 3"),
        (Items(list(with_value(np.nan))[3:]), False, f"{WHAT}, row 0 has a value that is NaN or infinite;"),
        ((X, Y - 1), True, f"{WHAT}, row 0 has label -1; labels must be whole numbers of 0 or more"),
        ((X, Y + 0.5), True, f"{WHAT}, row 0 has label 0.5"),
        ((X, np.full(6, np.nan)), True, f"{WHAT}, row 0 has no label; give rows without labels as target="),
        ((X, torch.full((6,), torch.inf)), True, f"{WHAT}, row 0 has label inf"),
        ((X, np.full(6, 2.0**63)), True, f"{WHAT}, row 0 has label 9.22337203685"),
        ((X, np.array(["cat"] * 6)), True, f"{WHAT}, row 0 has label 'cat'; labels must be whole numbers of 0 or more"),
        ((X, Y[:, None]), True, f"{WHAT} has labels of shape (6, 1)"),
        ((X, torch.zeros(6, dtype=torch.complex64)), True, f"{WHAT} has complex labels"),
        ((X, None), True, f"{WHAT} has labels that are None"),
        ((X, [0, 1, None, 0, 1, 2]), True, f"{WHAT}, row 2 has no label"),
        ((X, [[0, 1], [2]]), True, f"{WHAT} has labels that are a list of 2; give one whole number for each row"),
        (Items([(X[0], -1)]), True, f"{WHAT}, row 0 has label -1"),
        (Items([(X[0], 1.5)]), True, f"{WHAT}, row 0 has label 1.5"),
        (Items([(X[0], 1e300)]), True, f"{WHAT}, row 0 has label 1e+300"),
        (Items([(X[0], 10**400)]), True, f"{WHAT}, row 0 has label 1000"),
        (Items([(X[0], "cat")]), True, f"{WHAT}, row 0 has label 'cat'"),
        (Items([(X[0], X[0])]), True, f"{WHAT}, row 0 has label array([0., 1.])"),
        (Items([(X[0], torch.tensor([0, 1]))]), True, f"{WHAT}, row 0 has label tensor([0, 1])"),
        (Items([X[0]]), True, f"{WHAT}, row 0 of the dataset must be a pair (x, label)"),
        (Items([()]), False, f"{WHAT}, row 0 of the dataset is empty"),
        (Items([(Picture(), 1)]), True, f"{WHAT}, row 0 is an object of type Picture; let the dataset's transform"),
        (TensorDataset(torch.zeros(2, 2)), True, f"{WHAT} is a TensorDataset of 1 tensors; give x and labels"),
        (Endless(), False, f"{WHAT} is an IterableDataset"),
        (Lengthless(), False, f"{WHAT} is a Dataset without a length"),
        (X, True, f"{WHAT} must be a pair (x, labels) of numpy arrays or torch tensors"),
        ((X, Y, Y), True, "not a tuple of 3"),
        ((X, Y), False, f"{WHAT} is a tuple; give x alone"),
        (None, False, f"{WHAT} is None; give a numpy array, a torch tensor or a map-style Dataset"),
        ({"z": X}, False, f"{WHAT} is a dict with no key for the input; name those of input and label with keys="),
        (X.astype(str), False, f"{WHAT} holds numpy <U32 values; convert them to float32 or uint8"),
        (X.astype(np.uint16), False, f"{WHAT} holds torch.uint16 values"),
        (X.astype(complex), False, f"{WHAT} holds torch.complex128 values"),
        (torch.eye(3).to_sparse(), False, f"{WHAT} is a sparse tensor"),
        (np.ma.masked_less(X, 3), False, f"{WHAT} is a masked array"),
    ],
)
def test_refusals(data: Any, labelled: bool, message: str) -> None:
    with pytest.raises(FedmmError, match=re.escape(message)):
        as_rows(data, WHAT, labelled=labelled)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (torch.zeros(3), "row 1 is torch.float32 of shape (3,), row 0 is torch.float32 of shape (2,)"),
        (torch.zeros(2, dtype=torch.uint8), "row 1 is torch.uint8 of shape (2,)"),
        (torch.tensor([0.0, torch.nan]), "row 1 has a value that is NaN or infinite"),
    ],
)
def test_later_items_are_checked_as_they_are_read(second: Tensor, message: str) -> None:
    rows = as_rows(Items([torch.zeros(2), second]), WHAT, labelled=False)
    with pytest.raises(FedmmError, match=re.escape(message)):
        rows.take(torch.tensor([0, 1]))
