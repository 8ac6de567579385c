from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fabricated import hdf5, mnist_files, needs_data, source, usps_file, write
from PIL import Image
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.core.problem import WholeRows
from fedmm.data.datasets.mnist_m import read_idx
from fedmm.data.datasets.usps import Usps
from fedmm.data.domains import DomainPair
from fedmm.data.readers.hdf5 import read_hdf5
from fedmm.data.sources import sources

MNIST, USPS = mnist_files(), usps_file()


def lay_out(folder: Path, monkeypatch: pytest.MonkeyPatch, usps: bytes = USPS) -> Path:
    """A data folder with 5,040 and 30 digits of MNIST, 769 and 20 of USPS, and their checksums."""
    for name, files in (("mnist", MNIST), ("usps", {"usps.h5": usps})):
        monkeypatch.setitem(sources(), name, source(name, files))
        write(folder / name, files)
    monkeypatch.setenv("FEDMM_DATA", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return lay_out(tmp_path, monkeypatch)


BACK: dict[str, Any] = {"source": "usps", "target": "mnist"}


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, (5000, 40, 769, 30, 20)),
        (BACK, (729, 40, 5040, 20, 30)),
        ({"train_rows": 7, "test_rows": 3}, (5000, 7, 7, 3, 3)),
    ],
)
@pytest.mark.parametrize("size", [28, 16, 32])
def test_the_split(folder: Path, options: dict[str, Any], rows: tuple[int, ...], size: int) -> None:
    pair = Usps(**options, image_size=size).load()
    assert pair.source_validation is not None
    parts = (pair.source_validation, pair.source, pair.target, pair.source_test, pair.target_test)
    for part, count in zip(parts, rows, strict=True):
        assert part is not None
        assert part.x.shape == (count, 1, size, size)
        assert part.x.dtype == torch.uint8
        assert part.y.dtype == torch.int64
        assert part.x.is_contiguous()
    assert pair.class_names == tuple("0123456789")
    assert pair.view == WholeRows()


def test_labels_and_which_rows(folder: Path) -> None:
    # The made-up files count up in MNIST and down in USPS.
    pair = Usps(train_rows=20, test_rows=10).load()
    assert pair.source.y.tolist() == [*range(10)] * 2
    assert pair.target.y.tolist() == [*range(9, -1, -1)] * 2
    assert pair.target_test is not None
    assert pair.target_test.y.tolist() == [*range(9, -1, -1)]
    back = Usps(**BACK, train_rows=20).load()
    assert back.source.y.tolist() == [9 - row % 10 for row in range(729, 749)]
    assert back.target.y.tolist() == [*range(10)] * 2


def mnist_digits() -> Tensor:
    return torch.from_numpy(read_idx(MNIST["train-images-idx3-ubyte.gz"], 3, "x").copy())


def usps_digits() -> Tensor:
    return torch.from_numpy(np.rint(255 * read_hdf5(USPS, "x")["train/data"].astype(float))).byte().view(-1, 16, 16)


def test_each_domain_keeps_its_pixels_at_its_own_size(folder: Path) -> None:
    assert torch.equal(Usps().load().source.x[:, 0], mnist_digits()[5000:])
    assert torch.equal(Usps(image_size=16).load().target.x[:, 0], usps_digits())


@pytest.mark.parametrize(("size", "digits"), [(28, usps_digits()), (16, mnist_digits())])
def test_the_other_is_resized_as_pillow_does(folder: Path, size: int, digits: Tensor) -> None:
    options = {} if size == 28 else BACK
    target = Usps(**options, image_size=size, train_rows=5).load().target.x[:, 0]
    for found, digit in zip(target, digits, strict=False):
        expected = Image.fromarray(digit.numpy()).resize((size, size), Image.Resampling.BILINEAR)
        assert np.array_equal(found, np.asarray(expected))


def test_a_row_does_not_depend_on_how_many_are_asked_for(folder: Path) -> None:
    many, few = Usps().load(), Usps(train_rows=7, test_rows=3).load()
    assert torch.equal(few.target.x, many.target.x[:7])
    assert torch.equal(few.source.x, many.source.x[:7])
    assert many.source_validation is not None
    assert few.source_validation is not None
    assert torch.equal(few.source_validation.x, many.source_validation.x)


@pytest.mark.parametrize("damage", ["missing", "truncated", "corrupt"])
def test_a_bad_file_is_refused_by_name_with_its_checksum(folder: Path, damage: str) -> None:
    path = folder / "usps" / "usps.h5"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(USPS[:-9] if damage == "truncated" else USPS[:-9] + b"123456789")
    told = "cannot be read" if damage == "missing" else "is truncated or corrupt"
    with pytest.raises(FedmmError, match=f"{re.escape(str(path))} {told}.*{hashlib.sha256(USPS).hexdigest()}"):
        Usps().load()


def test_no_folder(folder: Path) -> None:
    (folder / "usps" / "usps.h5").unlink()
    (folder / "usps").rmdir()
    with pytest.raises(FedmmError, match=r"there is no folder .*; get it with 'fedmm data fetch usps'"):
        Usps().load()


LABELS, PIXELS = np.arange(10, dtype="<i4"), np.zeros((10, 256), "<f4")


@pytest.mark.parametrize(
    "train",
    [
        {"target": LABELS},
        {"data": PIXELS, "target": LABELS[:9]},
        {"data": PIXELS[:, :100], "target": LABELS},
        {"data": PIXELS + 2, "target": LABELS},
        {"data": PIXELS * np.nan, "target": LABELS},
        {"data": PIXELS, "target": LABELS + 1},
        {"data": PIXELS, "target": LABELS.astype("<f4")},
        {"data": PIXELS[:0], "target": LABELS[:0]},
    ],
    ids=["no pixels", "too few labels", "other size", "too bright", "not finite", "no such digit", "no class", "empty"],
)
def test_another_file_of_the_same_form_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: dict[str, Any]
) -> None:
    lay_out(tmp_path, monkeypatch, hdf5({"train": train, "test": {"data": PIXELS, "target": LABELS}}))
    with pytest.raises(
        FedmmError, match=r"usps\.h5 must hold train/data, rows of 256 numbers from 0 to 1, and train/ta"
    ):
        Usps().load()


def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path, monkeypatch, b"label,pixel\n")
    with pytest.raises(FedmmError, match=r"usps\.h5 cannot be read as an HDF5 file: it does not start with"):
        Usps().load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "svhn"}, "source must be one of mnist, usps, not 'svhn'"),
        ({"target": "mnist"}, "source and target must differ, but both are 'mnist'"),
        ({"image_size": 7}, "image_size must be at least 8"),
        ({"image_size": 257}, "image_size must be at most 256, not 257"),
        ({"train_rows": -1}, "train_rows must be at least 0"),
        ({"test_rows": 1.0}, "test_rows must be a whole number"),
        ({"train_rows": 41}, "train_rows must be at most 40, the digits that mnist has, not 41"),
        ({"test_rows": 21}, "test_rows must be at most 20, the digits that usps has, not 21"),
    ],
)
def test_refusals(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        Usps(**options).load()


def test_a_source_with_no_more_than_its_validation_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path, monkeypatch, usps_file(train=729))
    with pytest.raises(FedmmError, match="usps must have more than the 729 training digits of source_validation"):
        Usps(**BACK).load()


# The real ones --------------------------------------------------------------------------------------------------------


def sha256(x: Tensor) -> str:
    return hashlib.sha256(x.numpy()).hexdigest()


@pytest.fixture(scope="module")
def real() -> DomainPair:
    return Usps().load()


@needs_data
def test_usps_is_the_same_to_the_pixel_everywhere(real: DomainPair) -> None:
    assert real.target_test is not None
    assert [len(part.y) for part in (real.source, real.target, real.target_test)] == [55000, 7291, 2007]
    assert sha256(real.source.x) == "9442eeaf75ef172c7c0415c4a521e424d28d39e39f522fea115c213c2755f101"
    assert sha256(real.target.x) == "99efa0d38ffaf3ed6769f6da880fee5673f78ee04840b48a5ab49f64d601cbba"
    assert sha256(real.target_test.x) == "360009d7e8b13fe825df45e1c6cd74508e7f3ff7141fb9aac32d1a1bfe29b16b"
    small = Usps(image_size=16, source="usps", target="mnist").load()
    assert sha256(small.target.x[5000:]) == "c9e567e9af1f436b5c2ae419fcd5abb685e9143e59ef560c792b6b1d1d26c8a5"
    assert [len(part.y) for part in (small.source, small.target)] == [6562, 60000]


@needs_data
def test_the_classes_are_those_of_usps(real: DomainPair) -> None:
    # The published counts: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, its data's page.
    assert real.target_test is not None
    assert real.target.y.bincount().tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert real.target_test.y.bincount().tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
