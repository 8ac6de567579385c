from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from fabricated import office_files, originals, picture, source, write

from fedmm.core.errors import FedmmError
from fedmm.data.download import check, count_files
from fedmm.data.sources import Source

FILES = {"a.bin": b"first", "deep/b.bin": b"second"}
SECOND = hashlib.sha256(b"second").hexdigest()
OFFICE = office_files(("amazon", "webcam"))


@pytest.fixture
def small(tmp_path: Path) -> Source:
    write(tmp_path / "small", FILES)
    return source("small", FILES)


@pytest.fixture
def office(tmp_path: Path) -> Source:
    return source("office", OFFICE, more=(originals(OFFICE, "http://nowhere.invalid"),))


def test_files_that_are_right_pass(small: Source, tmp_path: Path) -> None:
    seen = []
    assert {name: edition.name for name, edition in check(small, tmp_path, lambda: seen.append(1)).items()} == {
        "small": "main"
    }
    assert len(seen) == 2
    (held,) = count_files(small, tmp_path)
    assert (held.files, held.wanted, held.bytes) == (2, 2, 11)


@pytest.mark.parametrize("content", [b"secon", b"secend", b"", b"seconds"])
def test_a_file_with_other_bytes_is_refused_by_name_with_both_checksums(
    small: Source, tmp_path: Path, content: bytes
) -> None:
    write(tmp_path / "small", {"deep/b.bin": content})
    found = hashlib.sha256(content).hexdigest()
    message = f"{tmp_path}/small/deep/b.bin is truncated or corrupt: its sha256 is {found}, in {len(content)} bytes; "
    with pytest.raises(FedmmError, match=re.escape(message + f"its sha256 must be {SECOND}, in 6 bytes")):
        check(small, tmp_path)


def test_a_missing_file_is_refused_by_name_with_its_checksum(small: Source, tmp_path: Path) -> None:
    (tmp_path / "small/deep/b.bin").unlink()
    with pytest.raises(FedmmError, match=f"b.bin cannot be read: No such file.*; its sha256 must be {SECOND}"):
        check(small, tmp_path)
    assert count_files(small, tmp_path)[0].files == 1


def test_several_bad_files_are_counted(small: Source, tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match=r"a\.bin cannot be read.* \(1 more files are missing or wrong\)"):
        check(small, tmp_path / "elsewhere")
    assert count_files(small, tmp_path / "elsewhere")[0].files == 0


def test_each_part_may_be_of_its_own_edition(office: Source, tmp_path: Path) -> None:
    larger = office_files(("webcam",), side=60)
    write(tmp_path / "office", OFFICE | larger)
    assert {name: edition.name for name, edition in check(office, tmp_path).items()} == {
        "office/amazon": "main",
        "office/webcam": "originals",
    }
    assert [held.files for held in count_files(office, tmp_path)] == [17, 17]


def test_a_picture_without_a_checksum_must_be_one(office: Source, tmp_path: Path) -> None:
    larger = office_files(("webcam",), side=60)
    write(tmp_path / "office", OFFICE | larger | {"webcam/pen/frame_0002.jpg": picture(0, kind="JPEG")[:-50]})
    with pytest.raises(FedmmError, match=r"webcam/pen/frame_0002\.jpg cannot be read as a picture"):
        check(office, tmp_path)


def test_damaged_files_do_not_pass_as_another_edition(office: Source, tmp_path: Path) -> None:
    # Seven of seventeen files have other sizes; they are pictures, but not those of the edition that is there.
    other = dict(list(office_files(("webcam",), side=60).items())[:7])
    write(tmp_path / "office", OFFICE | other)
    with pytest.raises(FedmmError, match=r"webcam/bike/frame_0001\.jpg is truncated or corrupt.* \(6 more files"):
        check(office, tmp_path)


def test_half_of_another_edition_is_known_for_what_it_is(office: Source, tmp_path: Path) -> None:
    amazon = {path: content for path, content in OFFICE.items() if path.startswith("amazon")}
    write(tmp_path / "office", amazon | dict(list(office_files(("webcam",), side=60).items())[:3]))
    with pytest.raises(FedmmError, match=r"webcam/bike/frame_0004\.jpg cannot be read: No such file"):
        check(office, tmp_path)
