"""Files and folders like the training data, as rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fabricated import picture, write

from fedmm.core.errors import FedmmError
from fedmm.data.columns import Column
from fedmm.data.domains import Input
from fedmm.data.inputs import ArrayInput, ImageInput, TableInput, build_input, input_table
from fedmm.data.labels import UNKNOWN

IMAGES = ImageInput(("cat", "dog"), 16, 12)
ARRAYS = ArrayInput(("a", "b"), (3, 4, 4), True, "channels_last")
TABLE = TableInput(
    ("no", "yes"), (Column("age", 40.0, 10.0, True), Column("city", levels=("Oslo", "Rome"))), "sick", "who"
)
SCALED = ArrayInput(("0", "1"), (2,), False, mean=(1.0, 2.0), deviation=(0.5, 3.0))
NUMBERS = ArrayInput(("0", "1", "2"), (5,), False)


@pytest.mark.parametrize("given", [IMAGES, ARRAYS, TABLE, NUMBERS, SCALED], ids=lambda each: each.name)
def test_every_input_comes_back_from_json(given: Input) -> None:
    assert build_input(json.loads(json.dumps(input_table(given)))) == given


@pytest.mark.parametrize(
    "table", [{}, {"name": "sounds"}, {"name": "images"}, {"name": "images", "class_names": "ab", "stored_size": 4}]
)
def test_what_is_no_input_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(FedmmError):
        build_input(table)


# Pictures -------------------------------------------------------------------------------------------------------------


def test_a_folder_of_pictures_has_no_labels(tmp_path: Path) -> None:
    write(tmp_path, {"b.png": picture(1), "a.png": picture(2), "notes.txt": b"x"})
    rows = IMAGES.read(tmp_path)
    assert rows.names == ("a.png", "b.png")
    assert rows.x.shape == (2, 3, 12, 12)
    assert rows.x.dtype == torch.uint8
    assert rows.y is None


def test_one_picture_is_a_row(tmp_path: Path) -> None:
    write(tmp_path, {"cat/a.png": picture(2), "cat/b.png": picture(3)})
    rows = IMAGES.read(tmp_path / "cat" / "a.png")
    assert (rows.names, rows.y) == (("a.png",), None)
    assert torch.equal(rows.x, IMAGES.read(tmp_path).x[:1])


def test_class_folders_are_labels_and_unknown_ones_are_told(tmp_path: Path) -> None:
    write(tmp_path, {"dog/1.png": picture(1), "cow/1.png": picture(2), "cat/1.png": picture(3)})
    rows = IMAGES.read(tmp_path)
    assert rows.names == ("cat/1.png", "cow/1.png", "dog/1.png")
    assert rows.y is not None
    assert rows.y.tolist() == [0, UNKNOWN, 1]
    assert rows.strange == ("cow",)


# Arrays ---------------------------------------------------------------------------------------------------------------


def test_an_array_file_is_rows_without_labels(tmp_path: Path) -> None:
    x = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.save(tmp_path / "x.npy", x)
    rows = ARRAYS.read(tmp_path / "x.npy")
    assert rows.names == ("0", "1")
    assert rows.y is None
    assert np.array_equal(rows.x.numpy(), x.transpose(0, 3, 1, 2))


def test_an_archive_may_have_labels_by_name(tmp_path: Path) -> None:
    x = np.zeros((3, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "x.npz", x=x, y=np.array(["b", "c", "a"]))
    rows = ARRAYS.read(tmp_path / "x.npz")
    assert rows.y is not None
    assert (rows.y.tolist(), rows.strange) == ([1, UNKNOWN, 0], ("c",))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"rows": np.zeros((2, 5))}, "must hold an array 'x'; its arrays are rows"),
        ({"x": np.zeros((2, 6))}, r"rows of shape \[6\]; the model was trained on \[5\]"),
        ({"x": np.zeros((2, 5), np.uint8)}, "uint8 values; the model was trained on numbers"),
        ({"x": np.full((2, 5), np.nan)}, "NaN or infinite in row 0"),
        ({"x": np.array([["a"] * 5])}, "must hold numbers"),
        ({"x": np.zeros((2, 5)), "y": np.zeros(3)}, "2 rows; give one label per row"),
        ({"x": np.zeros((2, 5)), "y": np.array([0.5, 1])}, "use whole numbers or text"),
        ({"x": np.array([{}, {}])}, "never unpickled"),
        ({"x": np.zeros(5)}, r"it must be \[rows, ...\]"),
        ({"x": np.zeros((0, 5))}, "holds nothing"),
    ],
)
def test_arrays_that_are_not_like_those_of_training_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], words: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(FedmmError, match=words):
        NUMBERS.read(tmp_path / "x.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY", b"text"])
def test_a_file_that_holds_no_arrays_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(FedmmError, match=r"x\.npz cannot be read"):
        NUMBERS.read(tmp_path / "x.npz")


# Tables ---------------------------------------------------------------------------------------------------------------

CSV = "who,city,age,sick\nann,Rome,50,yes\nbob,Paris,NA,no\ncid,,30,\n"


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.parquet"])
def test_a_table_becomes_numbers_and_labels(tmp_path: Path, name: str) -> None:
    pandas = pytest.importorskip("pandas")
    text = CSV.replace(",", "\t") if name.endswith(".tsv") else CSV
    content = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
        columns = {"who": ["ann", "bob", "cid"], "city": ["Rome", "Paris", None], "age": [50, None, 30.0]}
        pandas.DataFrame({**columns, "sick": ["yes", "no", None]}).to_parquet(tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    rows = TABLE.read(tmp_path / name)
    assert rows.names == ("ann", "bob", "cid")
    assert rows.x.tolist() == [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [-1, 0, 0, 0, 1]]
    assert rows.y is not None
    assert rows.y.tolist() == [1, 0, -1]


def test_a_table_without_its_label_and_id_has_neither(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "t.csv").write_text("age,city,more\n50,Rome,x\n")
    rows = TABLE.read(tmp_path / "t.csv")
    assert (rows.names, rows.y) == (("1",), None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ages,city\n1,Rome\n", r"no column 'age', .* did you mean 'ages'\? \(columns: ages, city\)"),
        ("age,city\nold,Rome\n", "column 'age' holds old in row 1, which is not a number"),
        ("age,city\n1,Rome\ninf,Rome\n", "'age' is infinite in row 2"),
        ("age;city\n1;Rome\n", "set data.separator = ';'"),
        ("age,city\n", "has no rows"),
        ("", "cannot be read as a table"),
        ("age,city\n1,2,3\n4,5,6,7,8\n", "cannot be read as a table"),
    ],
)
def test_tables_that_are_not_like_that_of_training_are_refused(tmp_path: Path, text: str, words: str) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FedmmError, match=words):
        TABLE.read(tmp_path / "t.csv")


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    write(tmp_path, {"a.parquet": b"PAR1 not really", "b.txt": b"age", "c.csv": b"\xff\xfe\x00", "d.csv.gz": b"no"})
    for name in ("a.parquet", "b.txt", "c.csv", "d.csv.gz", "e.csv", "."):
        with pytest.raises(FedmmError):
            TABLE.read(tmp_path / name)
