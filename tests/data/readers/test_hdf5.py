from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest
from fabricated import hdf5
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmm.core.errors import FedmmError
from fedmm.data.readers.hdf5 import read_hdf5

ARRAYS = {
    "b": {"x": np.arange(35, dtype="<f4").reshape(7, 5), "y": np.arange(7, dtype="<i4") - 3},
    "a": {"z": np.arange(24, dtype="<u1").reshape(2, 3, 4), "w": np.linspace(0, 1, 11)},
}
SMALL = hdf5({"b": ARRAYS["b"]}, chunk=3)


@pytest.mark.parametrize("chunk", [0, 1, 3, 100])
@pytest.mark.parametrize("packed", [True, False])
def test_arrays_come_back(chunk: int, packed: bool) -> None:
    found = read_hdf5(hdf5(ARRAYS, chunk=chunk, packed=packed), "x.h5")
    assert sorted(found) == ["a/w", "a/z", "b/x", "b/y"]
    for path, array in found.items():
        group, name = path.split("/")
        assert array.dtype == ARRAYS[group][name].dtype
        np.testing.assert_array_equal(array, ARRAYS[group][name])


def test_a_file_without_arrays() -> None:
    assert read_hdf5(hdf5({"a": {}}), "x.h5") == {}


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_that_is_cut_anywhere_is_refused_or_whole(packed: bool) -> None:
    whole = hdf5({"b": ARRAYS["b"]}, chunk=3, packed=packed)
    for cut in range(len(whole)):
        try:
            found = read_hdf5(whole[:cut], "x.h5")
        except FedmmError as refused:
            assert str(refused).startswith("x.h5 cannot be read as an HDF5 file: ")  # noqa: PT017 - or it is read
        else:
            np.testing.assert_array_equal(found["b/x"], ARRAYS["b"]["x"])


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_file_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(SMALL)
    for at, value in changes:
        damaged[at] = value
    try:
        read_hdf5(bytes(damaged), "x.h5")
    except FedmmError as refused:
        assert str(refused).startswith("x.h5 cannot be read as an HDF5 file: ")  # noqa: PT017 - or it is read


def changed(content: bytes, at: int, form: str, *values: Any) -> bytes:
    made = bytearray(content)
    struct.pack_into(f"<{form}", made, at, *values)
    return bytes(made)


CHUNKED = hdf5({"b": {"y": ARRAYS["b"]["y"]}}, chunk=3, packed=False)
TREE = CHUNKED.index(b"TREE")
TYPE = CHUNKED.index(bytes([0x10, 8, 0, 0, 4, 0, 0, 0]))
SPACE = CHUNKED.index(struct.pack("<BBB5xQ", 1, 1, 0, 7))
PACKED = hdf5({"b": {"y": ARRAYS["b"]["y"]}}, chunk=3)
FILTER = PACKED.index(struct.pack("<BB6xHHHH", 1, 1, 1, 0, 1, 1))
PLAIN = hdf5({"b": {"y": ARRAYS["b"]["y"]}}, chunk=0)
PLAIN_SPACE = PLAIN.index(struct.pack("<BBB5xQ", 1, 1, 0, 7))
CUBE = CHUNKED.index(struct.pack("<BBB", 3, 2, 2))
ROOT = struct.unpack_from("<Q", CHUNKED, 64)[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it does not start with HDF5's signature"),
        (b"PK\3\4", "it does not start with HDF5's signature"),
        (CHUNKED[:12], "it ends too early"),
        (changed(CHUNKED, 8, "B", 2), "its superblock must be of version 0 with 8-byte addresses"),
        (changed(CHUNKED, 64, "Q", 10**15), "it ends too early"),
        (changed(CHUNKED, ROOT, "B", 2), f"the object header at address {ROOT} must be of version 1, not 2"),
        (changed(CHUNKED, TREE, "4s", b"EERT"), f"there is no TREE at address {TREE}"),
        (changed(CHUNKED, TREE + 5, "B", 1), "there is no TREE at address"),
        (changed(CHUNKED, TREE + 6, "H", 2), "2 of 3 chunks are there"),
        (changed(CHUNKED, TREE + 24 + 32 + 8, "Q", 0), "3 of 3 chunks are there"),
        (changed(CHUNKED, TREE + 24, "I", 11), "must hold 12 bytes"),
        (changed(CHUNKED, TYPE, "B", 0x13), "b/y must hold little-endian integers or floats"),
        (changed(CHUNKED, TYPE + 1, "B", 9), "b/y must hold little-endian integers or floats"),
        (changed(CHUNKED, TYPE + 4, "I", 3), "b/y must hold little-endian integers or floats"),
        (changed(CHUNKED, SPACE, "B", 2), "the sizes of b/y must be of version 1, not 2"),
        (changed(CHUNKED, SPACE + 8, "Q", 1 << 40), "b/y of sizes [1099511627776] is too large"),
        (changed(CHUNKED, CUBE + 1, "B", 0), "b/y must be contiguous or in chunks"),
        (changed(CHUNKED, CUBE + 2, "B", 3), "b/y and its chunks have different ranks"),
        (changed(CHUNKED, CUBE + 11, "I", 0), "b/y has chunks of [0] numbers"),
        (changed(PACKED, FILTER + 8, "H", 2), "b/y must be packed by deflate alone"),
        (changed(PLAIN, PLAIN_SPACE + 8, "Q", 8), "b/y of sizes [8] has 28 bytes"),
    ],
)  # fmt: skip
def test_what_is_not_of_this_form_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(FedmmError, match=rf"^x\.h5 cannot be read as an HDF5 file: .*{re.escape(reason)}"):
        read_hdf5(content, "x.h5")


def test_a_group_in_itself_is_refused() -> None:
    child = CHUNKED.index(b"SNOD", CHUNKED.rindex(b"HEAP")) + 16
    with pytest.raises(FedmmError, match=f"two paths lead to address {ROOT}"):
        read_hdf5(changed(CHUNKED, child, "Q", ROOT), "x.h5")
