from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fabricated import idx, mnist_files, needs_data, picture, source, write
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.core.problem import WholeRows
from fedmm.core.seeding import hashed, key
from fedmm.data.datasets.mnist_m import MnistM, read_idx
from fedmm.data.domains import DomainPair
from fedmm.data.readers.images import read_picture
from fedmm.data.sources import sources

DIGITS = mnist_files()
PHOTOGRAPHS = {f"train/{number}.png": picture(number, 40 + number, 35) for number in range(5)}


def lay_out(folder: Path, monkeypatch: pytest.MonkeyPatch, digits: dict[str, bytes] = DIGITS) -> Path:
    """A data folder with 5,040 and 30 digits and five photographs, and a catalogue that knows their checksums."""
    for name, files in (("mnist", digits), ("bsds500", PHOTOGRAPHS)):
        monkeypatch.setitem(sources(), name, source(name, files))
        write(folder / "data" / name, files)
    monkeypatch.setenv("FEDMM_DATA", str(folder / "data"))
    monkeypatch.setenv("FEDMM_CACHE", str(folder / "cache"))
    return folder / "data"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return lay_out(tmp_path, monkeypatch)


def load(**options: Any) -> DomainPair:
    return MnistM(**{"train_rows": 40, "test_rows": 30} | options).load()


def test_the_split(folder: Path) -> None:
    pair = load()
    assert pair.source_validation is not None
    for part, rows in (
        (pair.source_validation, 5000),
        (pair.source, 40),
        (pair.target, 40),
        (pair.source_test, 30),
        (pair.target_test, 30),
    ):
        assert part.x.shape == (rows, 3, 28, 28)
        assert part.x.dtype == torch.uint8
        assert part.y.dtype == torch.int64
        assert part.x.is_contiguous()
    # The labels of the made-up files are 0 to 9 over and over.
    assert pair.source.y.tolist() == pair.target.y.tolist() == [row % 10 for row in range(5000, 5040)]
    assert pair.source_test.y.tolist() == pair.target_test.y.tolist() == [row % 10 for row in range(30)]
    assert pair.class_names == tuple("0123456789")
    assert pair.view == WholeRows()


def digits_of(prefix: str) -> Tensor:
    return torch.from_numpy(read_idx(DIGITS[f"{prefix}-images-idx3-ubyte.gz"], 3, "x").copy())


def test_the_source_shows_the_digit_in_three_channels(folder: Path) -> None:
    digits = digits_of("train")
    grey = load(digits="grey")
    assert torch.equal(grey.source.x, digits[5000:].unsqueeze(1).expand(-1, 3, -1, -1))
    binarised = load()
    assert torch.equal(binarised.source.x, 255 * (grey.source.x > 0).to(torch.uint8))
    assert binarised.source_validation is not None
    assert torch.equal(binarised.source_validation.x[:, 1], 255 * (digits[:5000] > 0).to(torch.uint8))


@pytest.mark.parametrize("kind", ["binarised", "grey"])
def test_the_target_is_the_difference_of_a_patch_and_the_digit(folder: Path, kind: str) -> None:
    pair = load(digits=kind, seed=3)
    pictures = [np.asarray(read_picture(content, "x")).astype(int) for content in PHOTOGRAPHS.values()]
    for part, shown, target, first in (
        ("train", pair.source, pair.target, 5000),
        ("test", pair.source_test, pair.target_test, 0),
    ):
        for row in range(30):

            def draw(what: str, part: str = part, place: int = first + row) -> int:
                return int(hashed(key(key(3, "mnist_m", part), what), torch.tensor(place)))

            photograph = pictures[draw("photograph") % 5]
            top, left = draw("down") % (photograph.shape[0] - 27), draw("right") % (photograph.shape[1] - 27)
            patch = photograph[top : top + 28, left : left + 28].transpose(2, 0, 1)
            assert np.array_equal(target.x[row], abs(patch - shown.x[row].int().numpy()))


def test_a_row_does_not_depend_on_how_many_are_asked_for(folder: Path) -> None:
    many, few = load(), load(train_rows=7, test_rows=3)
    assert torch.equal(few.target.x, many.target.x[:7])
    assert torch.equal(few.source.x, many.source.x[:7])
    assert torch.equal(few.target_test.x, many.target_test.x[:3])


def test_the_seed_decides_the_patches_alone(folder: Path) -> None:
    one, other = load(), load(seed=1)
    assert torch.equal(one.source.x, other.source.x)
    assert not torch.equal(one.target.x, other.target.x)
    assert torch.equal(one.target.x, load(seed=0).target.x)


def test_a_patch_belongs_to_the_digit_s_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path / "many", monkeypatch)
    patches = load().target.x ^ load().source.x  # of bytes 0 and 255, the difference is exclusive or
    lay_out(tmp_path / "few", monkeypatch, mnist_files(train=5010))
    pair = load(train_rows=10)
    assert torch.equal(pair.target.x ^ pair.source.x, patches[:10])


def test_it_is_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load()
    assert len(list((folder.parent / "cache").iterdir())) == 1
    monkeypatch.setenv("FEDMM_DATA", str(folder / "nowhere"))
    assert torch.equal(load().target.x, first.target.x)
    with pytest.raises(FedmmError, match=r"there is no folder .*; get it with 'fedmm data fetch mnist_m'"):
        load(seed=1)


@pytest.mark.parametrize("name", ["mnist/t10k-labels-idx1-ubyte.gz", "bsds500/train/3.png"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "corrupt"])
def test_a_bad_file_is_refused_by_name_with_its_checksum(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if damage == "truncated" else content[:-9] + b"123456789")
    told = "cannot be read" if damage == "missing" else "is truncated or corrupt"
    with pytest.raises(FedmmError, match=f"{re.escape(str(path))} {told}.*{hashlib.sha256(content).hexdigest()}"):
        load()


@pytest.mark.parametrize(
    ("images", "labels"),
    [((30, 28, 28), 29), ((30, 27, 28), 30)],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: tuple[int, ...], labels: int
) -> None:
    odd = {
        "t10k-images-idx3-ubyte.gz": idx(np.zeros(images, np.uint8)),
        "t10k-labels-idx1-ubyte.gz": idx(np.zeros(labels, np.uint8)),
    }
    lay_out(tmp_path, monkeypatch, DIGITS | odd)
    with pytest.raises(FedmmError, match="must hold 28 x 28 digits with a label of 0 to 9 for each; the test files"):
        load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_rows": 0}, "train_rows must be at least 1"),
        ({"test_rows": 1.0}, "test_rows must be a whole number"),
        ({"digits": "black"}, "digits must be one of binarised, grey, not 'black'"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"train_rows": 41}, "train_rows must be at most 40, not 41"),
        ({"test_rows": 31}, "test_rows must be at most 30, not 31"),
    ],
)
def test_refusals(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        load(**options)


# The real ones --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> DomainPair:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMM_CACHE", str(tmp_path_factory.mktemp("cache")))
        return MnistM().load()


def sha256(x: Tensor) -> str:
    return hashlib.sha256(x.numpy()).hexdigest()


@needs_data
def test_mnist_m_is_the_same_to_the_pixel_everywhere(real: DomainPair) -> None:
    assert [len(part.y) for part in (real.source, real.target, real.source_test, real.target_test)] == [
        55000, 55000, 10000, 10000,
    ]  # fmt: skip
    assert real.source_validation is not None
    assert real.source_validation.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]  # MNIST begins so
    assert real.source_test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert sha256(real.source.x) == "3383b52be7632c0fa887fc523c2f333507556897e05d1bb4f3b806d7b18c3929"
    assert sha256(real.target.x) == "2dca5d0155edc0e7cf3d9ecaba3f54ad8667ea9db4905e234fb8f523fd474e9a"
    assert sha256(real.target_test.x) == "56948ce5fcf84f96e199623f8c205a85a8e0a54f0eafe0d030ff27b44849dc39"


@needs_data
def test_the_classes_are_those_of_mnist(real: DomainPair) -> None:
    # The published counts of the 10,000 test digits.
    assert real.source_test.y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


# idx files ------------------------------------------------------------------------------------------------------------

shapes = st.lists(st.integers(0, 4), min_size=1, max_size=3)


@given(shapes, st.integers(0, 255))
def test_an_array_comes_back(shape: list[int], value: int) -> None:
    array = np.full(shape, value, np.uint8)
    found = read_idx(idx(array), len(shape), "x.gz")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, array)


@given(st.binary(max_size=40), st.integers(1, 3))
def test_any_bytes_are_read_or_refused(content: bytes, dimensions: int) -> None:
    for packed in (content, gzip.compress(content)):
        try:
            read_idx(packed, dimensions, "x.gz")
        except FedmmError as refused:
            assert str(refused).startswith("x.gz ")  # noqa: PT017 - or it is read


@given(st.data())
def test_a_file_that_is_cut_anywhere_is_refused(data: st.DataObject) -> None:
    packed = idx(np.arange(60, dtype=np.uint8).reshape(3, 4, 5))
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(FedmmError, match=r"x\.gz "):
        read_idx(packed[:cut], 3, "x.gz")


HEADER = bytes([0, 0, 8, 1, 0, 0, 0, 3])


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"not gzip", "x.gz cannot be read as a gzipped idx file: Not a gzipped file"),
        (gzip.compress(b""), "must begin with the magic number 0x00000801"),
        (gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 3])), "with 1 dimensions, not with 00000803"),
        (gzip.compress(bytes([0, 0, 13, 1, 0, 0, 0, 3])), "not with 00000d01"),
        (gzip.compress(HEADER + b"ab"), "x.gz must have 3 bytes after its header, for sizes [3], not 2"),
        (gzip.compress(HEADER + b"abcd"), "for sizes [3], not 4"),
    ],
    ids=["not gzip", "empty", "other dimensions", "other type", "too short", "too long"],
)
def test_what_is_no_idx_file_is_refused(packed: bytes, message: str) -> None:
    with pytest.raises(FedmmError, match=re.escape(message)):
        read_idx(packed, 1, "x.gz")
