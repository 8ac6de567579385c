from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from serving import Fault, Site, serving

from fedmm.core.errors import FedmmError
from fedmm.data.http import Retries, download
from fedmm.data.sources import StoredFile

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HURRIED = Retries(attempts=3, pause=0.0, timeout=60.0)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        running.files["a b.bin"] = CONTENT
        yield running


class Download:
    """One file to be fetched into a folder, and how many bytes were reported."""

    def __init__(self, folder: Path, *sites: str) -> None:
        self.folder, self.moved = folder, 0
        addresses = tuple(f"{site}/a%20b.bin" for site in sites)
        self.file = StoredFile("deep/a.bin", len(CONTENT), SHA256, addresses)

    def __call__(self, file: StoredFile | None = None) -> None:
        download(self.folder, file or self.file, self._count, HURRIED)

    def _count(self, count: int) -> None:
        self.moved += count

    def leave(self, content: bytes) -> None:
        (self.folder / "deep").mkdir()
        (self.folder / "deep/a.bin.partial").write_bytes(content)

    @property
    def there(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.folder.rglob("*") if path.is_file()}

    def is_whole(self) -> bool:
        right = (self.folder / "deep/a.bin").read_bytes() == CONTENT
        return right and list(self.there) == ["a.bin"] and self.moved == len(CONTENT)


@pytest.fixture
def one(site: Site, tmp_path: Path) -> Download:
    return Download(tmp_path, site.address)


def test_a_file_comes_whole_under_its_name(one: Download, site: Site) -> None:
    one()
    assert one.is_whole()
    assert site.requests == [("a b.bin", "")]


def test_what_is_left_of_an_older_download_is_completed(one: Download, site: Site) -> None:
    one.leave(CONTENT[:1000])
    one()
    assert one.is_whole()
    assert site.requests == [("a b.bin", "bytes=1000-")]


def test_what_is_left_may_be_everything(one: Download, site: Site) -> None:
    one.leave(CONTENT)
    one()
    assert one.is_whole()
    assert site.requests == []


@pytest.mark.parametrize(
    "left", [b"x" * 1000, b"x" * len(CONTENT), CONTENT + b"x"], ids=["begun", "same size", "too long"]
)
def test_what_is_left_and_wrong_is_thrown_away(one: Download, left: bytes) -> None:
    one.leave(left)
    one()
    assert one.is_whole()


def test_a_server_without_ranges_sends_all_of_it_again(one: Download, site: Site) -> None:
    one.leave(CONTENT[:1000])
    site.faults["a b.bin"] = [Fault(ranges=False)]
    one()
    assert one.is_whole()
    assert len(site.requests) == 1


def test_a_server_that_dies_midway_is_asked_for_the_rest(one: Download, site: Site) -> None:
    # As long as something comes each time, it is not given up: here more often than there are attempts.
    site.faults["a b.bin"] = [Fault(cut=1000)] * 5
    one()
    assert one.is_whole()
    assert [wanted for _, wanted in site.requests] == ["", *(f"bytes={n}000-" for n in range(1, 6))]


def test_a_server_that_stays_dead_is_given_up_and_the_part_is_kept(one: Download, site: Site) -> None:
    site.faults["a b.bin"], site.lasting = [Fault(cut=1000), Fault(cut=0)], True
    with pytest.raises(
        FedmmError, match=f"broke off after 1000 of 256000 bytes.*; its sha256 must be {SHA256}, in 256000"
    ):
        one()
    assert one.there == {"a.bin.partial": 1000}
    site.faults.clear()
    one.moved = 0
    one()
    assert one.is_whole()


@pytest.mark.parametrize("status", [503, 429, 500])
def test_a_busy_server_is_asked_again(one: Download, site: Site, status: int) -> None:
    site.faults["a b.bin"] = [Fault(status=status)] * 2
    one()
    assert one.is_whole()
    assert len(site.requests) == 3


@pytest.mark.parametrize("status", [403, 404])
def test_a_server_that_has_it_not_is_asked_once(one: Download, site: Site, status: int) -> None:
    site.faults["a b.bin"], site.lasting = [Fault(status=status)], True
    with pytest.raises(FedmmError, match=f"the server answers {status} .*{SHA256}"):
        one()
    assert len(site.requests) == 1
    assert one.there == {}


def test_wrong_bytes_are_refused_with_both_checksums_and_leave_nothing(one: Download, site: Site) -> None:
    site.faults["a b.bin"], site.lasting = [Fault(flip=7)], True
    wrong = hashlib.sha256(CONTENT[:7] + b"\x06" + CONTENT[8:]).hexdigest()
    with pytest.raises(FedmmError, match=f"its sha256 is {wrong}.*; its sha256 must be {SHA256}"):
        one()
    assert one.there == {}
    assert one.moved == 0


def test_a_file_of_another_size_is_not_even_fetched(one: Download, site: Site) -> None:
    site.files["a b.bin"] = CONTENT[:-1]
    with pytest.raises(FedmmError, match="its size there is 255999 bytes"):
        one()
    assert one.there == {}


@pytest.mark.parametrize("fault", [Fault(status=404), Fault(flip=3), Fault(status=503)])
def test_the_next_address_is_tried(site: Site, tmp_path: Path, fault: Fault) -> None:
    with serving() as broken:
        broken.files["a b.bin"], broken.faults["a b.bin"], broken.lasting = CONTENT, [fault], True
        one = Download(tmp_path, broken.address, site.address)
        one()
    assert one.is_whole()


def test_a_part_from_one_address_is_completed_at_the_next(site: Site, tmp_path: Path) -> None:
    with serving() as dying:
        dying.files["a b.bin"], dying.lasting = CONTENT, True
        dying.faults["a b.bin"] = [Fault(cut=5000), Fault(cut=0)]
        one = Download(tmp_path, dying.address, site.address)
        one()
    assert one.is_whole()
    assert site.requests == [("a b.bin", "bytes=5000-")]


def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        one = Download(tmp_path, f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(FedmmError, match=r"could not be fetched from http.*refused"):
            one()


def test_a_checksum_may_be_given_by_its_beginning_and_a_size_not_at_all(one: Download, site: Site) -> None:
    site.faults["a b.bin"] = [Fault(length=False)]
    one(StoredFile("deep/a.bin", None, SHA256[:8], one.file.addresses))
    assert one.is_whole()
    with pytest.raises(FedmmError, match="its sha256 must begin with 01234567"):
        one(StoredFile("deep/a.bin", None, "01234567", one.file.addresses))
    assert one.is_whole()  # the older file stays


@pytest.mark.parametrize("how", ["plain", "chunks"])
@pytest.mark.parametrize(("size", "bound"), [(None, 2_000_000), (len(CONTENT), len(CONTENT))])
def test_a_server_that_never_ends_is_cut(one: Download, site: Site, how: str, size: int | None, bound: int) -> None:
    site.faults["a b.bin"], site.lasting = [Fault(endless=how)], True
    file = StoredFile("deep/a.bin", size, SHA256, one.file.addresses)
    most, seen = 0, 0

    def count(moved: int) -> None:
        nonlocal most, seen
        seen += moved
        most = max(most, seen)

    with pytest.raises(FedmmError, match=f"it sent more than {bound} bytes"):
        download(one.folder, file, count, replace(HURRIED, most=2_000_000))
    assert len(site.requests) == 1
    assert (one.there, seen) == ({}, 0)
    assert bound < most < bound + 1_000_000  # no more than a block beyond it


def test_a_file_that_is_said_to_be_too_large_is_not_even_begun(one: Download) -> None:
    file = StoredFile("deep/a.bin", None, SHA256, one.file.addresses)
    with pytest.raises(FedmmError, match="its size there is 256000 bytes, more than the 255999 that are accepted"):
        download(one.folder, file, lambda count: None, replace(HURRIED, most=255_999))
    assert one.there == {}
    download(one.folder, file, lambda count: None, replace(HURRIED, most=256_000))
    with pytest.raises(FedmmError, match="a download's bound must be at least 1 byte, not 0"):
        replace(HURRIED, most=0)


def test_a_folder_that_cannot_be_written_is_one_sentence(one: Download) -> None:
    (one.folder / "deep").write_bytes(b"a file")
    with pytest.raises(FedmmError, match=r"a\.bin\.partial cannot be written: "):
        one()
