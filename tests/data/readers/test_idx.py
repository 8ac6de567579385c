from __future__ import annotations

import gzip
import re

import numpy as np
import pytest
from fabricated import idx
from hypothesis import given
from hypothesis import strategies as st

from fedmm.core.errors import FedmmError
from fedmm.data.readers.idx import read_idx

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
def test_refusals(packed: bytes, message: str) -> None:
    with pytest.raises(FedmmError, match=re.escape(message)):
        read_idx(packed, 1, "x.gz")
